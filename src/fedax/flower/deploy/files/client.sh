#!/bin/sh
# Flower's SuperNode, which runs the app that was signed for trusted.yaml and no other. The port is
# one of the loopback.
cd "$(dirname "$0")" || exit 1
export FLWR_HOME="$PWD/flower" FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.1
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
mkdir -p flower
trap 'kill "$node"; wait "$node"; exit' TERM INT
# a SuperNode ends where the server does not know its key, also while the server is just starting
while :; do
  flower-supernode --superlink "@address@" --root-certificates ca.crt \
    --auth-supernode-private-key client.key --trusted-entities trusted.yaml \
    --host 127.0.0.1 --port "${PORT:-@port@}" --node-config "site=\"$PWD\"" &
  node=$!
  wait "$node"
  echo "Trying again; what ended it stands above. After a minute of \"code: 2004\", the server does not" \
    "know this client's key: have the client packed again."
  sleep 5
done
