//go:build linux && (amd64 || arm64)

package sandbox

// The emulated prefixes. The first also covers its siblings with an underscore: infiniband_verbs,
// infiniband_mad, infiniband_cm.
const (
	classPrefix = "/sys/class/infiniband"
	cmPrefix    = "/sys/class/misc/rdma_cm"
	devPrefix   = "/dev/infiniband"
)

// mayBeInTree is the quick test on the beginning of a path, before it is read or cleaned as a
// whole: an absolute path whose first component can become sys or dev.
func mayBeInTree(p []byte) bool {
	i := 0
	for i < len(p) && p[i] == '/' {
		i++
	}
	if i == 0 {
		return false
	}
	rest := p[i:]
	if len(rest) < 4 {
		return true // not enough read, or a path of at most three letters
	}
	return string(rest[:4]) == "sys/" || string(rest[:4]) == "dev/" || rest[0] == '.' || hasDotDot(rest)
}

// hasDotDot reports a component that begins with two dots.
func hasDotDot(p []byte) bool {
	for i := 0; i+2 < len(p); i++ {
		if p[i] == '/' && p[i+1] == '.' && p[i+2] == '.' {
			return true
		}
	}
	return false
}

// inTree reports that a cleaned path lies at or below an emulated prefix.
func inTree(p []byte) bool {
	if n := len(classPrefix); len(p) >= n && string(p[:n]) == classPrefix {
		return len(p) == n || p[n] == '/' || p[n] == '_'
	}
	return below(p, cmPrefix) || below(p, devPrefix)
}

func below(p []byte, prefix string) bool {
	n := len(prefix)
	return len(p) >= n && string(p[:n]) == prefix && (len(p) == n || p[n] == '/')
}

// cleanPath rewrites an absolute path in place without double slashes, "." and "..", by its
// letters only: a symbolic link before a ".." is not followed.
func cleanPath(p []byte) []byte {
	out := 0
	for i := 0; i < len(p); {
		for i < len(p) && p[i] == '/' {
			i++
		}
		j := i
		for j < len(p) && p[j] != '/' {
			j++
		}
		switch part := p[i:j]; {
		case len(part) == 0 || string(part) == ".":
		case string(part) == "..":
			for out > 0 {
				out--
				if p[out] == '/' {
					break
				}
			}
		default:
			p[out] = '/'
			out += 1 + copy(p[out+1:], part) // never ahead of i: each part was preceded by a slash
		}
		i = j
	}
	if out == 0 {
		p[0] = '/'
		out = 1
	}
	return p[:out]
}

// baseName is what follows the last slash.
func baseName(p []byte) []byte {
	for i := len(p) - 1; i >= 0; i-- {
		if p[i] == '/' {
			return p[i+1:]
		}
	}
	return p
}
