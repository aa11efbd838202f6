#!/usr/bin/env bash
# Whether NVIDIA's driver is on this machine, or a device of it. Exit code 0: yes, 1: no. `count` prints how many devices.
# usage: deploy/find_gpu.sh driver|device|count
set -euo pipefail

count_devices() {
  { nvidia-smi -L 2>/dev/null || ls -d /dev/nvidia[0-9]* 2>/dev/null || true; } | grep -cE '^(GPU|/dev/nvidia)' || true
}
has_device() { [ "$(count_devices)" -gt 0 ]; }
has_library() { /sbin/ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; }

case "${1:-}" in
  driver) has_device || has_library ;;
  device) has_device ;;
  count) count_devices ;;
  *) echo "usage: $0 driver|device|count" >&2; exit 2 ;;
esac
