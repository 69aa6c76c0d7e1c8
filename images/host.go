package images

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// HostList is the allow-list of the host's root, profile data. An empty list shows nothing.
type HostList struct {
	Paths []string `json:"paths" yaml:"paths"` // absolute directories, shown whole
	Etc   []string `json:"etc" yaml:"etc"`     // files and directories, relative to /etc; globs as in path.Match
}

// DefaultHostList is what programs need and nothing that is secret: no password hashes, keys, host identity,
// and no file in which administrators keep tokens or proxies with passwords (environment, profile.d, npmrc,
// pip.conf, gitconfig, wgetrc, maven settings).
func DefaultHostList() HostList {
	return HostList{
		Paths: []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt"},
		Etc: []string{
			// the dynamic linker, alternatives, certificates
			"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives",
			"ssl/certs", "ssl/openssl.cnf", "ca-certificates.conf", "crypto-policies",
			"pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust/extracted",
			// names and numbers
			"protocols", "services", "rpc", "networks", "ethertypes", "host.conf", "gai.conf",
			"mime.types", "magic", "magic.mime", "os-release", "*-release", "debian_version",
			// language, time, shells
			"localtime", "timezone", "locale.alias", "locale.conf", "locale.gen", "default/locale",
			"bash.bashrc", "bashrc", "profile", "inputrc", "shells", "login.defs", "papersize",
			// tools that do not work without
			"fonts", "xml", "java-*", "R", "php", "ImageMagick-*", "mke2fs.conf",
		},
	}
}

// refusedTrees are not shown whoever names them: they hold people's data, the host's state and its kernel
// interfaces, or have something of ours mounted over them inside. /etc is shown file by file.
var refusedTrees = []string{"/boot", "/dev", "/etc", "/home", "/proc", "/root", "/run", "/sys", "/tmp", "/var", "/workspace"}

// etcSecrets are not shown whoever names them, nor is a directory that holds one.
var etcSecrets = []string{
	"shadow", "shadow-", "gshadow", "gshadow-", "opasswd", "security/opasswd", "sudoers", "sudoers.d", "ssl/private", "pki/tls/private", "pki/nssdb",
	"ssh", "krb5.keytab", "NetworkManager", "wireguard", "openvpn", "ipsec.secrets", "ppp", "wpa_supplicant",
	"kubernetes", "rancher", "docker", "containers/auth.json", "letsencrypt", "credstore", "credstore.encrypted", "caisson",
}

// maxCopy is the largest file that the skeleton copies; a larger one is bound.
const maxCopy = 1 << 20

// Host resolves the list on this host. What does not exist is left out silently; what exists and cannot be
// shown (a link out of the list, a device) is in Root.Skipped. A list that names a refused tree or a secret is
// an error.
func Host(l HostList) (Root, error) { return hostAt("/", l) }

// host resolves a list below a root directory of the host, "/" but in tests.
type host struct {
	root  string
	paths []string
	seen  map[string]bool
	out   Root

	behind map[string]bool // directories, by whether a link leads to them
	etc    []string        // the names in /etc
}

func hostAt(root string, l HostList) (Root, error) {
	h := &host{root: root, seen: map[string]bool{}, behind: map[string]bool{}, out: Root{Kind: KindHost}}
	for _, p := range l.Paths {
		if err := checkPath(p); err != nil {
			return Root{}, err
		}
		h.paths = append(h.paths, path.Clean(p))
	}
	slices.Sort(h.paths) // parents first
	h.paths = slices.Compact(h.paths)
	for _, p := range h.paths {
		if err := h.add(p); err != nil {
			return Root{}, err
		}
	}
	if err := h.addEtc(l.Etc); err != nil {
		return Root{}, err
	}
	digest, err := h.out.digest()
	h.out.Digest = digest
	return h.out, err
}

func checkPath(p string) error {
	clean := path.Clean(p)
	switch {
	case !path.IsAbs(p) || strings.ContainsRune(p, 0):
		return fmt.Errorf("host root: %q is not an absolute path", p)
	case clean == "/":
		return fmt.Errorf("host root: / cannot be shown whole")
	}
	for _, r := range refusedTrees {
		if within(clean, r) {
			return fmt.Errorf("host root: %s lies in %s, which is never shown; name single files of /etc under etc, and use a mount for anything else", p, r)
		}
	}
	return nil
}

// within says whether p is dir or lies below it.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func withinAny(p string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return within(p, d) })
}

func (h *host) skip(p, reason string) {
	h.out.Skipped = append(h.out.Skipped, Skip{Path: p, Reason: reason})
}

// covered says whether a bind shows p already.
func (h *host) covered(p string) bool {
	return slices.ContainsFunc(h.out.Binds, func(b Bind) bool { return within(p, b.Target) })
}

// add shows one path of the host, absolute: a directory or a large file by a bind, a link by its text, a small
// file of /etc by a copy.
func (h *host) add(p string) error {
	if h.covered(p) || h.seen[p] {
		return nil
	}
	h.seen[p] = true
	name := filepath.Join(h.root, p)
	fi, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("host root: %w", err)
	}
	if h.behindLink(path.Dir(p)) {
		h.skip(p, "its directory is reached through a link")
		return nil
	}
	switch {
	case fi.Mode()&fs.ModeSymlink != 0:
		return h.addLink(p)
	case fi.IsDir():
		h.out.Binds = append(h.out.Binds, Bind{Source: name, Target: p})
	case !fi.Mode().IsRegular():
		h.skip(p, "neither a file nor a directory")
	case fi.Size() <= maxCopy && fi.Mode().Perm()&0o004 != 0 && within(p, "/etc"):
		h.out.Files = append(h.out.Files, File{Source: name, Path: p, Stamp: stamp(fi)})
	default:
		h.out.Binds = append(h.out.Binds, Bind{Source: name, Target: p})
	}
	return nil
}

// behindLink says whether a link is part of the path of dir.
func (h *host) behindLink(dir string) bool {
	behind, known := h.behind[dir]
	if !known {
		real, err := h.resolve(dir)
		behind = err != nil || real != dir
		h.behind[dir] = behind
	}
	return behind
}

// addLink shows a link that ends inside what the list shows.
func (h *host) addLink(p string) error {
	target, err := os.Readlink(filepath.Join(h.root, p))
	if err != nil {
		return fmt.Errorf("host root: %w", err)
	}
	end, err := h.resolve(p)
	switch {
	case err != nil:
		h.skip(p, "a link that leads nowhere")
	case within(end, "/etc") && within(p, "/etc") && !secret(strings.TrimPrefix(end, "/etc/")),
		withinAny(end, h.paths) && !withinAny(end, refusedTrees):
		h.out.Symlinks = append(h.out.Symlinks, Symlink{Target: target, Path: p})
	default:
		h.skip(p, "a link to "+end+", which the list does not show")
	}
	return nil
}

// resolve follows the links of p, as seen from the host's root.
func (h *host) resolve(p string) (string, error) {
	real, err := filepath.EvalSymlinks(filepath.Join(h.root, p))
	if err != nil {
		return "", err
	}
	root, err := filepath.EvalSymlinks(h.root)
	if err != nil {
		return "", err
	}
	rel, err := filepath.Rel(root, real)
	return path.Join("/", filepath.ToSlash(rel)), err
}

func (h *host) addEtc(patterns []string) error {
	var names []string
	for _, p := range patterns {
		p = strings.TrimPrefix(p, "/etc/")
		if !filepath.IsLocal(p) || path.Clean(p) != p || p == "." {
			return fmt.Errorf("host root: etc: %q is not a name below /etc", p)
		}
		literal := !strings.ContainsAny(p, `*?[\`)
		if literal && secret(p) {
			return fmt.Errorf("host root: etc: %s is, or holds, a secret of the host and is never shown", p)
		}
		if literal && generated(p) {
			return fmt.Errorf("host root: etc: %s is made by caisson, the host's is never shown", p)
		}
		if literal {
			names = append(names, p)
			continue
		}
		matches, err := h.glob(p)
		if err != nil {
			return fmt.Errorf("host root: etc: %q: %w", p, err)
		}
		names = append(names, matches...)
	}
	slices.Sort(names)
	for _, n := range slices.Compact(names) {
		if err := h.add(path.Join("/etc", n)); err != nil {
			return err
		}
	}
	return nil
}

// glob returns the names below /etc that match and may be shown. /etc itself is read once.
func (h *host) glob(pattern string) ([]string, error) {
	top := filepath.Join(h.root, "etc")
	if h.etc == nil {
		d, err := os.Open(top)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		defer d.Close()
		if h.etc, err = d.Readdirnames(-1); err != nil {
			return nil, err
		}
	}
	names := slices.Clone(h.etc)
	if strings.Contains(pattern, "/") {
		matches, err := filepath.Glob(filepath.Join(top, pattern))
		if err != nil {
			return nil, err
		}
		for i, m := range matches {
			matches[i] = strings.TrimPrefix(m, top+"/")
		}
		names = matches
	}
	var err error
	names = slices.DeleteFunc(names, func(n string) bool {
		ok, bad := path.Match(pattern, n)
		err = cmp.Or(err, bad)
		return !ok || secret(n) || generated(n)
	})
	return names, err
}

func secret(rel string) bool {
	return slices.ContainsFunc(etcSecrets, func(s string) bool { return within(rel, s) || within(s, rel) })
}

func generated(rel string) bool { return slices.Contains(etcNames, rel) }

// digest identifies a host root: what it shows, and the copied files as they are.
func (r Root) digest() (string, error) {
	r.Digest, r.Skipped = "", nil
	data, err := json.Marshal(r)
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:]), err
}
