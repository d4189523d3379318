package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// metric is one figure of a contender.
type metric struct {
	name, unit string

	series string // the row of the tables and the line of the plots that it belongs to; empty: it has a row of its own
	size   int    // bytes of a message
}

// contender is something to measure. One measurement gives one figure a metric.
type contender struct {
	name    string
	metrics []metric
	measure func(context.Context) ([]float64, error)
}

// The metrics that targets name.
var (
	rnicWriteBW       = at(rnicSeries, gigabytes, bulk).name
	rnicWriteLat      = at(rnicSeries, microseconds, 8).name
	ucxPutBW          = at(ucxSeries["tcp"], gigabytes, bulk).name
	ucxPutLat         = at(ucxSeries["tcp"], microseconds, 8).name
	ibWriteBW         = at(ibSeries, gigabytes, bulk).name
	ibWriteLatTypical = at(ibSeries, microseconds, 8).name
	ibWriteLatAverage = at(ibSeries, microseconds, 8).name + ", average"
)

const (
	gigabytes    = "GB/s" // 10^9 bytes
	microseconds = "us"   // half a round trip
	nanoseconds  = "ns"
)

// The series, as the tables and plots name them.
const (
	rnicSeries      = "rnic perf, WRITE, over UDP on lo"
	ibSeries        = "perftest under rnic run, WRITE"
	libfabricSeries = "libfabric over TCP, ping-pong"
	iperfSeries     = "iperf3, one TCP stream"
	sockperfSeries  = "sockperf over TCP"
)

var ucxSeries = map[string]string{"tcp": "UCX over TCP, put", "posix,self": "UCX over shared memory, put"}

// at is the metric of a series at a message size.
func at(series, unit string, size int) metric {
	what := map[string]string{gigabytes: "bandwidth", microseconds: "latency"}[unit]
	return metric{fmt.Sprintf("%s, %s, %s", series, what, sizeName(size)), unit, series, size}
}

func sizeName(size int) string {
	switch {
	case size >= 1<<20:
		return fmt.Sprintf("%d MiB", size>>20)
	case size >= 1<<10:
		return fmt.Sprintf("%d KiB", size>>10)
	}
	return fmt.Sprintf("%d B", size)
}

const bulk = 65536 // bytes a message of the targets of bandwidth

// Sizes of the messages. 8 bytes are what the targets of latency are about.
var (
	bandwidthSizes = []int{64, 4096, bulk, 1 << 20}
	latencySizes   = []int{8, 64, 4096, bulk, 1 << 20}
)

// maxSockperf is below what sockperf takes as a message.
const maxSockperf = 65000

// streamed is how many messages a bandwidth measurement has, for about half a second of it.
func streamed(size int) int { return min(100_000, max(500, 1_300_000_000/size)) }

// exchanged is the same for a latency measurement.
func exchanged(size int) int {
	switch {
	case size <= 4096:
		return 20_000
	case size <= bulk:
		return 5000
	}
	return 500
}

// contenders are all measurements of a round.
func contenders() (all []contender) {
	for _, size := range bandwidthSizes {
		name := strconv.Itoa(size)
		all = append(all,
			contender{"rnic-bw-" + name, []metric{at(rnicSeries, gigabytes, size)}, rnicBandwidth(size)},
			contender{"ucx-tcp-bw-" + name, []metric{at(ucxSeries["tcp"], gigabytes, size)}, ucx("tcp", "ucp_put_bw", size)},
			contender{"ib-bw-" + name, []metric{at(ibSeries, gigabytes, size)}, ibBandwidth(size)},
			contender{"ucx-shm-bw-" + name, []metric{at(ucxSeries["posix,self"], gigabytes, size)}, ucx("posix,self", "ucp_put_bw", size)},
			contender{"iperf3-" + name, []metric{at(iperfSeries, gigabytes, size)}, iperf(size)})
		if size <= maxSockperf {
			all = append(all, contender{"sockperf-bw-" + name, []metric{at(sockperfSeries, gigabytes, size)}, sockperfBandwidth(size)})
		}
	}
	for _, size := range latencySizes {
		name := strconv.Itoa(size)
		ib := []metric{at(ibSeries, microseconds, size)}
		if size == 8 {
			ib = append(ib, metric{name: ibWriteLatAverage, unit: microseconds})
		}
		fabric := []metric{at(libfabricSeries, microseconds, size)}
		if size != 8 {
			fabric = append(fabric, at(libfabricSeries, gigabytes, size))
		}
		all = append(all,
			contender{"rnic-lat-" + name, []metric{at(rnicSeries, microseconds, size)}, rnicLatency(size)},
			contender{"ucx-tcp-lat-" + name, []metric{at(ucxSeries["tcp"], microseconds, size)}, ucx("tcp", "ucp_put_lat", size)},
			contender{"ib-lat-" + name, ib, ibLatency(size, len(ib))},
			contender{"ucx-shm-lat-" + name, []metric{at(ucxSeries["posix,self"], microseconds, size)}, ucx("posix,self", "ucp_put_lat", size)},
			contender{"libfabric-" + name, fabric, libfabric(size, len(fabric))})
		if size >= 64 && size <= maxSockperf {
			all = append(all, contender{"sockperf-lat-" + name, []metric{at(sockperfSeries, microseconds, size)}, sockperfLatency(size)})
		}
	}
	return append(all, contender{"post", []metric{{name: "one ibv_post_send under rnic run, 8 B", unit: nanoseconds},
		{name: "ibv_post_send to completion under rnic run, 8 B", unit: nanoseconds}}, postCost})
}

// perfReport is what of rnic perf --json matters here.
type perfReport struct {
	Iterations     float64 `json:"iterations"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	LatencyNanos   struct {
		P50 float64 `json:"p50"`
	} `json:"latency_ns"`
	Errors float64 `json:"errors"`
}

func rnicPerf(ctx context.Context, args ...string) (*perfReport, error) {
	out, err := output(ctx, nil, append([]string{"./rnic", "perf"}, args...)...)
	if err != nil {
		return nil, err
	}
	report := &perfReport{}
	if err := json.Unmarshal([]byte(out), report); err != nil {
		return nil, fmt.Errorf("output of rnic perf: %w: %s", err, out)
	}
	if report.Errors != 0 || report.Iterations == 0 {
		return nil, fmt.Errorf("rnic perf reports %g iterations, %g errors", report.Iterations, report.Errors)
	}
	return report, nil
}

// rnicBandwidth also makes sure that the bytes went through the loopback interface.
func rnicBandwidth(size int) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		before, err := loopbackBytes()
		if err != nil {
			return nil, err
		}
		report, err := rnicPerf(ctx, "write-bw", "--loopback", "-s", strconv.Itoa(size), "-n", strconv.Itoa(streamed(size)), "--json")
		if err != nil {
			return nil, err
		}
		after, err := loopbackBytes()
		if err != nil {
			return nil, err
		}
		if payload := report.Iterations * float64(size); after-before < payload {
			return nil, fmt.Errorf("%g bytes of payload, but lo's counter grew by %g only", payload, after-before)
		}
		return []float64{report.BytesPerSecond / 1e9}, nil
	}
}

// loopbackBytes is how many bytes lo has sent, in this network namespace (proc(5), /proc/net/dev: the ninth number).
func loopbackBytes() (float64, error) {
	data, err := os.ReadFile("/proc/self/net/dev")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if name, numbers, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "lo" {
			if fields := strings.Fields(numbers); len(fields) > 8 {
				return strconv.ParseFloat(fields[8], 64)
			}
		}
	}
	return 0, fmt.Errorf("/proc/self/net/dev: no line of lo")
}

func rnicLatency(size int) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		report, err := rnicPerf(ctx, "write-lat", "--loopback", "-s", strconv.Itoa(size), "-n", strconv.Itoa(exchanged(size)), "--json")
		if err != nil {
			return nil, err
		}
		return []float64{report.LatencyNanos.P50 / 1e3}, nil
	}
}

// stock runs a program of perftest as server and client in one "rnic run" and
// returns the fields of its table's row for the size.
func stock(ctx context.Context, program string, size, iterations int) ([]float64, error) {
	out, err := output(ctx, nil, filepath.Join("scripts", "stock.sh"), program, "-F", "-s", strconv.Itoa(size), "-n",
		strconv.Itoa(iterations))
	if err != nil {
		return nil, err
	}
	return row(out, strconv.Itoa(size))
}

// row returns the numbers of the last line whose first field is first.
func row(out, first string) ([]float64, error) {
	var numbers []float64
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[0] != first {
			continue
		}
		numbers = nil
		for _, field := range fields {
			if n, err := strconv.ParseFloat(field, 64); err == nil {
				numbers = append(numbers, n)
			}
		}
	}
	if len(numbers) < 5 {
		return nil, fmt.Errorf("no row for %s in:\n%s", first, out)
	}
	return numbers, nil
}

// ibBandwidth: size, iterations, peak, average, millions of messages a second.
func ibBandwidth(size int) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		numbers, err := stock(ctx, "ib_write_bw", size, streamed(size)/2)
		if err != nil {
			return nil, err
		}
		return []float64{numbers[4] * 1e6 * float64(size) / 1e9}, nil
	}
}

// ibLatency: size, iterations, minimum, maximum, typical, average, ... The first count of typical and average are taken.
func ibLatency(size, count int) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		numbers, err := stock(ctx, "ib_write_lat", size, exchanged(size))
		if err != nil {
			return nil, err
		}
		if len(numbers) < 6 {
			return nil, fmt.Errorf("ib_write_lat's row has only the numbers %v", numbers)
		}
		return numbers[4 : 4+count], nil
	}
}

// postCost: what a post costs the program, and post to completion, by a program of our own on stock libibverbs.
func postCost(ctx context.Context) ([]float64, error) {
	dir, err := os.MkdirTemp("", "postcost")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "postcost")
	source := filepath.Join("tools", "bench", "postcost", "postcost.c")
	if _, err := output(ctx, nil, "gcc", "-O2", "-Wall", "-o", program, source, "-libverbs"); err != nil {
		return nil, err
	}
	out, err := output(ctx, nil, "./rnic", "run", "--", program)
	if err != nil {
		return nil, err
	}
	var figures [2]float64
	if _, err := fmt.Sscan(out, &figures[0], &figures[1]); err != nil {
		return nil, fmt.Errorf("output of postcost: %w: %s", err, out)
	}
	return figures[:], nil
}

// ucx returns a measurement with UCX's own benchmark. Its columns are
// iterations, median, average and overall time in microseconds, average and
// overall bandwidth in MiB/s, average and overall messages a second.
func ucx(transport, test string, size int) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		iterations := exchanged(size)
		if strings.HasSuffix(test, "_bw") {
			iterations = streamed(size)
		}
		env := []string{"UCX_TLS=" + transport, "UCX_LOG_LEVEL=error"}
		if transport == "tcp" {
			env = append(env, "UCX_NET_DEVICES=lo")
		}
		out, err := pair(ctx, env, func(port string) ([]string, []string) {
			return []string{"ucx_perftest", "-p", port}, []string{"ucx_perftest", "-p", port, "127.0.0.1", "-t", test, "-s",
				strconv.Itoa(size), "-n", strconv.Itoa(iterations), "-w", strconv.Itoa(min(1000, iterations/5)), "-f", "-v"}
		})
		if err != nil {
			return nil, err
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		var columns []float64
		for field := range strings.SplitSeq(lines[len(lines)-1], ",") {
			n, err := strconv.ParseFloat(strings.TrimSpace(field), 64)
			if err != nil {
				return nil, fmt.Errorf("output of ucx_perftest: %s", out)
			}
			columns = append(columns, n)
		}
		if len(columns) != 8 {
			return nil, fmt.Errorf("output of ucx_perftest: %s", out)
		}
		if strings.HasSuffix(test, "_bw") {
			return []float64{columns[7] * float64(size) / 1e9}, nil
		}
		return columns[1:2], nil
	}
}

var libfabricRow = regexp.MustCompile(`(?m)^\S+ +\S+ +=\S+ +\S+ +(\S+)s +\S+ +(\S+) +\S+ *$`)

// libfabric returns a measurement with libfabric's ping-pong: there is one message on its way at any time. Its figures are
// the mean time of a message and, with count 2, the bandwidth that follows.
func libfabric(size, count int) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		args := []string{"fi_pingpong", "-p", "tcp", "-e", "msg", "-S", strconv.Itoa(size), "-I", strconv.Itoa(exchanged(size))}
		out, err := pair(ctx, nil, func(port string) ([]string, []string) {
			return append(args, "-B", port), append(args, "-P", port, "127.0.0.1")
		})
		if err != nil {
			return nil, err
		}
		match := libfabricRow.FindStringSubmatch(out)
		if match == nil {
			return nil, fmt.Errorf("output of fi_pingpong: %s", out)
		}
		us, err := strconv.ParseFloat(match[2], 64)
		if err != nil {
			return nil, err
		}
		return []float64{us, float64(size) / us / 1e3}[:count], nil
	}
}

// iperf writes size bytes a call.
func iperf(size int) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		out, err := pair(ctx, nil, func(port string) ([]string, []string) {
			return []string{"iperf3", "-s", "-1", "-p", port},
				[]string{"iperf3", "-c", "127.0.0.1", "-p", port, "-t", "1", "-l", strconv.Itoa(size), "-J"}
		})
		if err != nil {
			return nil, err
		}
		var report struct {
			End struct {
				Received struct {
					BitsPerSecond float64 `json:"bits_per_second"`
				} `json:"sum_received"`
			} `json:"end"`
		}
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			return nil, fmt.Errorf("output of iperf3: %w", err)
		}
		return []float64{report.End.Received.BitsPerSecond / 8 / 1e9}, nil
	}
}

// runSockperf runs a test of sockperf for a second, and returns the number that the pattern finds.
func runSockperf(ctx context.Context, test string, size int, pattern *regexp.Regexp) (float64, error) {
	out, err := pair(ctx, nil, func(port string) ([]string, []string) {
		return []string{"sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", port},
			[]string{"sockperf", test, "--tcp", "-i", "127.0.0.1", "-p", port, "-t", "1", "-m", strconv.Itoa(size)}
	})
	if err != nil {
		return 0, err
	}
	match := pattern.FindStringSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("output of sockperf: %s", out)
	}
	return strconv.ParseFloat(match[1], 64)
}

var (
	sockperfMedian = regexp.MustCompile(`percentile 50\.000 = +([0-9.]+)`)
	sockperfRate   = regexp.MustCompile(`Summary: Message Rate is ([0-9.]+) \[msg/sec\]`)
)

func sockperfLatency(size int) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		us, err := runSockperf(ctx, "ping-pong", size, sockperfMedian)
		return []float64{us}, err
	}
}

func sockperfBandwidth(size int) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		rate, err := runSockperf(ctx, "throughput", size, sockperfRate)
		return []float64{rate * float64(size) / 1e9}, err
	}
}
