package images

import "fmt"

// etcNames are the files of /etc that caisson makes; the host's are never shown.
var etcNames = []string{
	"group", "hostname", "hosts", "machine-id", "mtab", "nsswitch.conf", "passwd", "resolv.conf",
}

// EtcFiles makes the files of /etc that identify a host and its users: passwd, group, hosts, hostname,
// machine-id, nsswitch.conf (files and DNS, none of the host's directory services) and resolv.conf (no server:
// a look-up fails at once). Keys are relative to the root ("etc/passwd"). An empty machineID gives an empty file.
func EtcFiles(hostname, user string, uid, gid uint32, machineID string) map[string][]byte {
	passwd := "root:x:0:0:root:/root:/bin/sh\n"
	group := "root:x:0:\n"
	if uid != 0 {
		passwd += fmt.Sprintf("%s:x:%d:%d:%s:/home/user:/bin/sh\n", user, uid, gid, user)
	}
	if gid != 0 {
		group += fmt.Sprintf("%s:x:%d:\n", user, gid)
	}
	passwd += "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
	group += "nogroup:x:65534:\n"
	if machineID != "" {
		machineID += "\n"
	}
	return map[string][]byte{
		"etc/passwd":        []byte(passwd),
		"etc/group":         []byte(group),
		"etc/hostname":      []byte(hostname + "\n"),
		"etc/hosts":         []byte("127.0.0.1\tlocalhost " + hostname + "\n::1\tlocalhost " + hostname + " ip6-localhost ip6-loopback\n"),
		"etc/machine-id":    []byte(machineID),
		"etc/nsswitch.conf": []byte("passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\nrpc: files\nethers: files\n"),
		"etc/resolv.conf":   []byte("# No network: a look-up fails at once.\noptions timeout:1 attempts:1\n"),
	}
}
