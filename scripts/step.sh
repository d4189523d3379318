# step.sh - sourced: "step NAME COMMAND..." runs a command and says how long it took. A step that fails
# ends the script, so that what it wrote stands last.

step() {
	step_name=$1
	shift
	echo "== $step_name"
	step_begin=$(date +%s)
	if "$@"; then
		echo "== $step_name: ok, $(($(date +%s) - step_begin)) s"
	else
		echo "== $step_name: FAILED, $(($(date +%s) - step_begin)) s" >&2
		exit 1
	fi
}
