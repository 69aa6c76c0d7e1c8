package images
import ("testing";"encoding/json";"time")
func TestTry(t *testing.T){
 t0:=time.Now()
 r,err:=Host(DefaultHostList())
 t.Log(time.Since(t0))
 b,_:=json.MarshalIndent(r,""," ")
 t.Log(string(b),err)
 d:=t.TempDir()
 for range 3 {
 t0=time.Now()
 p,err:=r.Skeleton(d,nil,EtcFiles("caisson","user",1000,1000,""))
 t.Log(p,err,time.Since(t0))
 }
}
