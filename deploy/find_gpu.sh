#!/usr/bin/env bash
# Whether NVIDIA's driver is on this machine, or a device of it. Exit code 0: yes, 1: no.
# usage: deploy/find_gpu.sh driver|device
set -euo pipefail

has_device() { [ -e /dev/nvidiactl ] || nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }
has_library() { /sbin/ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; }

case "${1:-}" in
  driver) has_device || has_library ;;
  device) has_device ;;
  *) echo "usage: $0 driver|device" >&2; exit 2 ;;
esac
