package doctor

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Sizes of /dev/shm in bytes. An open device takes some 100 KiB and what its queues need: a queue pair of perftest's defaults 150 KiB.
const (
	leastShm  = 4 << 20
	usefulShm = 32 << 20
)

func checkShm(s *System) []Finding {
	const check = "/dev/shm"
	p := s.Shm()
	mount := []string{"mount -t tmpfs -o size=1g,mode=1777 shm /dev/shm", "docker run --shm-size 1g ..."}
	grow := []string{"mount -o remount,size=1g /dev/shm", "docker run --shm-size 1g ..."}
	switch {
	case p.Err != nil:
		return []Finding{{check, Problem, p.Err.Error(), "Queues and doorbells live there, in memory that program and NIC share.", mount}}
	case p.CreateErr != nil:
		f := Finding{check, Problem, fmt.Sprintf("a file cannot be made (O_TMPFILE): %v", p.CreateErr), "Queues and doorbells live there.", mount}
		if p.ReadOnly {
			f.Found += "; it is mounted read-only"
			f.Fix = []string{"mount -o remount,rw /dev/shm"}
		} else if errors.Is(p.CreateErr, syscall.EACCES) {
			f.Fix = []string{"chmod 1777 /dev/shm"}
		}
		return []Finding{f}
	}
	found := fmt.Sprintf("%s, %s free of %s", p.Type, size(p.Free), size(p.Size))
	if p.Size == 0 {
		found = p.Type + ", without limit of its own"
	}
	if p.NoExec {
		found += " (mounted noexec, which does not matter)"
	}
	switch {
	case p.AllocateErr != nil || p.Size != 0 && p.Free < leastShm:
		f := Finding{check, Problem, found, "No room for the queues of one program.", grow}
		if p.AllocateErr != nil {
			f.Found += fmt.Sprintf("; 2 MiB cannot be allocated: %v", p.AllocateErr)
		}
		if p.Size >= usefulShm {
			f.Means += " Something else fills it."
			f.Fix = append([]string{"ls -lS /dev/shm     # what is there"}, grow...)
		}
		return []Finding{f}
	case p.Size != 0 && p.Free < usefulShm:
		return []Finding{{check, Warning, found, "Room for some dozens of queue pairs; then \"cannot allocate memory\" is the answer.", grow}}
	case p.Type != "tmpfs":
		return []Finding{{check, Warning, found, "Queues are files there: on a file system with a disk behind it they may be written out all the time.", mount[:1]}}
	}
	return ok(check, "%s", found)
}

// size writes a number of bytes.
func size(n uint64) string {
	switch {
	case n < 10<<10:
		return fmt.Sprintf("%d bytes", n)
	case n < 10<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	case n < 10<<30:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d GiB", n>>30)
}

// leastFileSize is the limit of file sizes with which a device can be opened: a MiB for queues, a MiB for doorbells.
const (
	leastFileSize  = 2 << 20
	usefulFileSize = 64 << 20
)

func checkFileSize(s *System) []Finding {
	const check = "file size"
	n := s.Limits().FileSize
	fix := []string{"ulimit -f unlimited", "# in a systemd unit: LimitFSIZE=infinity"}
	switch {
	case n == Unlimited:
		return ok(check, "no limit (RLIMIT_FSIZE)")
	case n < leastFileSize:
		return []Finding{{check, Problem, "RLIMIT_FSIZE is " + size(n), "Programs cannot open the device: queues and doorbells are a file, and a doorbell behind the limit " +
			"would kill the program by SIGXFSZ.", fix}}
	case n < usefulFileSize:
		return []Finding{{check, Warning, "RLIMIT_FSIZE is " + size(n), "Half of it is the room for queues: few or small ones.", fix}}
	}
	return ok(check, "RLIMIT_FSIZE is %s", size(n))
}

func checkFiles(s *System) []Finding {
	const check = "open files"
	n := s.Limits().Files
	fix := []string{"ulimit -n 1024", "# in a systemd unit: LimitNOFILE=1024:524288"}
	switch {
	case n < 32:
		return []Finding{{check, Problem, fmt.Sprintf("RLIMIT_NOFILE is %d", n), "The NIC itself needs some twenty descriptors.", fix}}
	case n < 256:
		return []Finding{{check, Warning, fmt.Sprintf("RLIMIT_NOFILE is %d", n), fmt.Sprintf("A program can open %d devices at once.", n/8), fix}}
	}
	if n == Unlimited {
		return ok(check, "no limit (RLIMIT_NOFILE)")
	}
	return ok(check, "RLIMIT_NOFILE is %d", n)
}

func checkProcesses(s *System) []Finding {
	const check = "processes"
	n := s.Limits().Processes
	if n < 64 {
		return []Finding{{check, Warning, fmt.Sprintf("RLIMIT_NPROC is %d", n), "It counts all threads of the user; each run has three processes with about ten threads each beside the program.",
			[]string{"ulimit -u 1024", "docker run --pids-limit 1024 ..."}}}
	}
	if n == Unlimited {
		return ok(check, "no limit (RLIMIT_NPROC)")
	}
	return ok(check, "RLIMIT_NPROC is %d", n)
}

func checkInotify(s *System) []Finding {
	const check = "inotify"
	dir := "/proc/sys/fs/inotify/"
	instances, watches := strings.TrimSpace(s.read(dir+"max_user_instances")), strings.TrimSpace(s.read(dir+"max_user_watches"))
	if err := s.Inotify(); err != nil {
		f := Finding{check, Problem, fmt.Sprintf("%v (max_user_instances %s, max_user_watches %s)", err, instances, watches),
			"rnic run learns from inotify that a program has closed its device. All processes of the user share these limits.",
			[]string{"sysctl -w fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=65536"}}
		if errors.Is(err, syscall.ENOSYS) {
			f.Fix = []string{"# the kernel is built without CONFIG_INOTIFY_USER"}
		}
		return []Finding{f}
	}
	return ok(check, "max_user_instances %s, max_user_watches %s, for all processes of the user", orElse(instances, "unknown"), orElse(watches, "unknown"))
}
