#!/usr/bin/env bash
# two_hosts.sh BIN MODEL [--cable]: a server whose four ranks are spread over two hosts, played by two
# network namespaces of this machine, with names of their own and only a cable between them: the answer
# is that of one host, and a rank that dies on the other host is replaced. --cable also pulls the cable
# for a while (minutes). Exits with 77 where namespaces cannot be made (root, iproute2).
set -euo pipefail
bin=$1 model=$2 cable=${3:-}
work=$(mktemp -d)
here=wefta$$ there=weftb$$

clean_up() {
  for name in "$here" "$there"; do
    ip netns pids "$name" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
    ip netns delete "$name" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap clean_up EXIT

make_hosts() {
  ip netns add "$here" && ip netns add "$there" &&
    ip link add va netns "$here" type veth peer name vb netns "$there" &&
    ip -n "$here" addr add 10.77.0.1/24 dev va && ip -n "$there" addr add 10.77.0.2/24 dev vb &&
    ip -n "$here" link set lo up && ip -n "$there" link set lo up &&
    ip -n "$here" link set va up && ip -n "$there" link set vb up &&
    ip netns exec "$there" unshare -u true
}
if ! make_hosts >"$work/hosts.log" 2>&1; then
  echo "skipped, no network namespaces here: $(tail -1 "$work/hosts.log")"
  exit 77
fi

# In the place of ssh: [-options] HOST COMMAND...
cat >"$work/agent" <<AGENT
#!/usr/bin/env bash
while [[ \$1 == -* ]]; do shift; done
shift
exec ip netns exec $there unshare -u bash -c "hostname $there; \$*"
AGENT
chmod +x "$work/agent"
printf '10.77.0.1 slots=2\n10.77.0.2 slots=2\n' >"$work/hostfile"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm_rsh_agent=$work/agent
export work bin model

serve() { # ARGUMENTS...: a server in the first host, and waits until it is ready
  : >"$work/server.log"
  # shellcheck disable=SC2016  # expanded over there
  ip netns exec "$here" unshare -u bash -c \
    'hostname "$0"; exec "$bin/weft-server" --model "$model" --ranks 4 --selection exact "$@"' \
    "$here" "$@" >"$work/server.log" 2>&1 &
  server=$!
  for _ in {1..300}; do
    grep -q ' ready: ' "$work/server.log" && return
    kill -0 $server 2>/dev/null || break
    sleep 0.1
  done
  fail "the server did not get ready"
}
stop() {
  kill $server && wait $server
}
fail() {
  cat "$work/server.log"
  echo "FAILED: $1"
  exit 1
}
# Some 600 tokens, so that the answer selects; its text alone.
for i in {1..60}; do echo "On day $i the station had $((i * 7)) visitors."; done >"$work/report.txt"
ask() {
  ip netns exec "$here" timeout 300 "$bin/weft-chat" --file "$work/report.txt" --seed 1 \
    -q 'How many visitors came on day 9, and who was there?'
}

serve
want=$(ask)
stop
[ -n "$want" ] || fail "no answer on one host"

serve --hostfile "$work/hostfile"
[ "$(ip netns pids "$there" | xargs -r ps -o comm= -p | grep -c weft-engine)" = 2 ] ||
  fail "two ranks were to run on the second host"
[ "$(ask)" = "$want" ] || fail "another answer than on one host"

victim=$(ip netns pids "$there" | xargs ps -o pid=,comm= -p | awk '/weft-engine/ {print $1; exit}')
kill -9 "$victim"
[ "$(ask)" = "$want" ] || fail "another answer after a rank of the other host died"
grep -q 'starting another' "$work/server.log" || fail "the death was not noticed"

if [ "$cable" = --cable ]; then
  ip -n "$there" link set vb down
  (sleep 75 && ip -n "$there" link set vb up) &
  [ "$(ask)" = "$want" ] || fail "another answer after the cable was pulled"
  [ "$(grep -c 'starting another' "$work/server.log")" -ge 2 ] || fail "the cut was not noticed"
fi
stop || fail "the server did not end in order"
[ -z "$(ip netns pids "$there")" ] || fail "processes were left on the second host"
echo "passed"
