package profiles
import ("testing";"os";"time";"fmt")
func TestTry(t *testing.T){
 t0:=time.Now()
 e,err:=Load(LoadOptions{})
 fmt.Println(time.Since(t0), err)
 t0=time.Now()
 e,err=Load(LoadOptions{Name:"build", Flags: map[string][]string{"env":{"A=1","HOME"},"memory":{"3g"},"volume":{"/a:/b"}}, Env: []string{"CAISSON_PIDS_LIMIT=99"}})
 fmt.Println(time.Since(t0), err)
 e.WriteText(os.Stdout)
 os.Stdout.Write(Schema())
}
func BenchmarkLoad(b *testing.B){ for b.Loop(){ Load(LoadOptions{}) } }
