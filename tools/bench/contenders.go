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
}

// contender is something to measure. One measurement gives one figure a metric.
type contender struct {
	name    string
	metrics []metric
	measure func(context.Context) ([]float64, error)
}

// The metrics that targets name.
const (
	rnicWriteBW       = "rnic perf write-bw, 64 KiB, over UDP on lo"
	rnicWriteLat      = "rnic perf write-lat, 8 B, over UDP on lo, median"
	ucxPutBW          = "UCX put over TCP, 64 KiB"
	ucxPutLat         = "UCX put over TCP, 8 B, median"
	ibWriteBW         = "ib_write_bw under rnic run, 64 KiB"
	ibWriteLatTypical = "ib_write_lat under rnic run, 8 B, typical"
	ibWriteLatAverage = "ib_write_lat under rnic run, 8 B, average"
)

const (
	gigabytes    = "GB/s" // 10^9 bytes
	microseconds = "us"   // half a round trip
	nanoseconds  = "ns"
)

const bulk = 65536 // bytes a message of the bandwidth measurements

// Sizes of the measurements, for about a second each.
const (
	rnicBulkIterations = 20000
	ucxBulkIterations  = 20000
	ucxPingIterations  = 30000
	ibBulkIterations   = 20000
	ibPingIterations   = 20000
)

var contenders = []contender{
	{"rnic-bw", []metric{{rnicWriteBW, gigabytes}}, rnicBandwidth},
	{"ucx-tcp-bw", []metric{{ucxPutBW, gigabytes}}, ucx("tcp", "ucp_put_bw", bulk, ucxBulkIterations)},
	{"ib-bw", []metric{{ibWriteBW, gigabytes}}, ibBandwidth},
	{"rnic-lat", []metric{{rnicWriteLat, microseconds}}, rnicLatency},
	{"ucx-tcp-lat", []metric{{ucxPutLat, microseconds}}, ucx("tcp", "ucp_put_lat", 8, ucxPingIterations)},
	{"ib-lat", []metric{{ibWriteLatTypical, microseconds}, {ibWriteLatAverage, microseconds}}, ibLatency},
	{"post", []metric{{"one ibv_post_send under rnic run, 8 B", nanoseconds},
		{"ibv_post_send to completion under rnic run, 8 B", nanoseconds}}, postCost},
	{"ucx-shm-bw", []metric{{"UCX put over shared memory, 64 KiB", gigabytes}},
		ucx("posix,self", "ucp_put_bw", bulk, ucxBulkIterations)},
	{"ucx-shm-lat", []metric{{"UCX put over shared memory, 8 B, median", microseconds}},
		ucx("posix,self", "ucp_put_lat", 8, ucxPingIterations)},
	{"libfabric-bw", []metric{{"libfabric ping-pong over TCP, 64 KiB", gigabytes}}, libfabric(bulk, 5000)},
	{"libfabric-lat", []metric{{"libfabric ping-pong over TCP, 8 B, mean", microseconds}}, libfabric(8, 20000)},
	{"iperf3", []metric{{"iperf3, one TCP stream", gigabytes}}, iperf},
	{"sockperf", []metric{{"sockperf ping-pong over TCP, 14 B, median", microseconds}}, sockperf},
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
func rnicBandwidth(ctx context.Context) ([]float64, error) {
	before, err := loopbackBytes()
	if err != nil {
		return nil, err
	}
	report, err := rnicPerf(ctx, "write-bw", "--loopback", "-s", strconv.Itoa(bulk), "-n", strconv.Itoa(rnicBulkIterations), "--json")
	if err != nil {
		return nil, err
	}
	after, err := loopbackBytes()
	if err != nil {
		return nil, err
	}
	if payload := report.Iterations * bulk; after-before < payload {
		return nil, fmt.Errorf("%g bytes of payload, but lo's counter grew by %g only", payload, after-before)
	}
	return []float64{report.BytesPerSecond / 1e9}, nil
}

func loopbackBytes() (float64, error) {
	data, err := os.ReadFile("/sys/class/net/lo/statistics/tx_bytes")
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(string(data)), 64)
}

func rnicLatency(ctx context.Context) ([]float64, error) {
	report, err := rnicPerf(ctx, "write-lat", "--loopback", "-s", "8", "--json")
	if err != nil {
		return nil, err
	}
	return []float64{report.LatencyNanos.P50 / 1e3}, nil
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
func ibBandwidth(ctx context.Context) ([]float64, error) {
	numbers, err := stock(ctx, "ib_write_bw", bulk, ibBulkIterations)
	if err != nil {
		return nil, err
	}
	return []float64{numbers[4] * 1e6 * bulk / 1e9}, nil
}

// ibLatency: size, iterations, minimum, maximum, typical, average, ...
func ibLatency(ctx context.Context) ([]float64, error) {
	numbers, err := stock(ctx, "ib_write_lat", 8, ibPingIterations)
	if err != nil {
		return nil, err
	}
	if len(numbers) < 6 {
		return nil, fmt.Errorf("ib_write_lat's row has only the numbers %v", numbers)
	}
	return numbers[4:6], nil
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
func ucx(transport, test string, size, iterations int) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		env := []string{"UCX_TLS=" + transport, "UCX_LOG_LEVEL=error"}
		if transport == "tcp" {
			env = append(env, "UCX_NET_DEVICES=lo")
		}
		out, err := pair(ctx, env, func(port string) ([]string, []string) {
			return []string{"ucx_perftest", "-p", port}, []string{"ucx_perftest", "-p", port, "127.0.0.1", "-t", test, "-s",
				strconv.Itoa(size), "-n", strconv.Itoa(iterations), "-w", "1000", "-f", "-v"}
		})
		if err != nil {
			return nil, err
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		var columns []float64
		for field := range strings.SplitSeq(lines[len(lines)-1], ",") {
			n, err := strconv.ParseFloat(field, 64)
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

// libfabric returns a measurement with libfabric's ping-pong: there is one
// message on its way at any time.
func libfabric(size, iterations int) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		args := []string{"fi_pingpong", "-p", "tcp", "-e", "msg", "-S", strconv.Itoa(size), "-I", strconv.Itoa(iterations)}
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
		if size >= bulk {
			return []float64{float64(size) / us / 1e3}, nil
		}
		return []float64{us}, nil
	}
}

func iperf(ctx context.Context) ([]float64, error) {
	out, err := pair(ctx, nil, func(port string) ([]string, []string) {
		return []string{"iperf3", "-s", "-1", "-p", port}, []string{"iperf3", "-c", "127.0.0.1", "-p", port, "-t", "1", "-J"}
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

var sockperfMedian = regexp.MustCompile(`percentile 50\.000 = +([0-9.]+)`)

func sockperf(ctx context.Context) ([]float64, error) {
	out, err := pair(ctx, nil, func(port string) ([]string, []string) {
		return []string{"sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", port},
			[]string{"sockperf", "ping-pong", "--tcp", "-i", "127.0.0.1", "-p", port, "-t", "1", "-m", "14"}
	})
	if err != nil {
		return nil, err
	}
	match := sockperfMedian.FindStringSubmatch(out)
	if match == nil {
		return nil, fmt.Errorf("output of sockperf: %s", out)
	}
	us, err := strconv.ParseFloat(match[1], 64)
	return []float64{us}, err
}
