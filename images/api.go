package images

import "errors"

// HostList is profile data.
type HostList struct {
	Paths []string `json:"paths" yaml:"paths"`
	Etc   []string `json:"etc" yaml:"etc"`
}

var errTodo = errors.New("not there yet")

func DefaultHostList() HostList           { return HostList{} }
func Host(l HostList) (Root, error)       { return Root{}, errTodo }
func Dir(path string) (Root, error)       { return Root{}, errTodo }
func Tar(path, cache string) (Root, error) { return Root{}, errTodo }
func EtcFiles(hostname, user string, uid, gid uint32, machineID string) map[string][]byte {
	return nil
}
func (r Root) Skeleton(cacheDir string, targets []Target, files map[string][]byte) (string, error) {
	return "", errTodo
}
