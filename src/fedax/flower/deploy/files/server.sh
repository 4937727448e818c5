#!/bin/sh
# Flower's SuperLink, with the signed app of this folder. FEDAX_CONTINUE=0 leaves runs that a crash
# ended as they are.
cd "$(dirname "$0")" || exit 1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.1
exec python -m fedax.flower.deploy.hub . \
  flower-superlink --host "@bound@" --port @port@ --enable-supernode-auth \
  --ssl-ca-certfile keys/ca.crt --ssl-certfile keys/server.crt --ssl-keyfile keys/server.key \
  --disable-runtime-dependency-installation
