// What a program may have been started with: without descriptors 0, 1 and 2, or with a bound on its
// files.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

namespace quantgate {

/// Opens /dev/null in place of each of the three that is closed. Otherwise the next file that is
/// opened, a store's for one, would get the number, and what is printed would be written there.
/// Call it first in main().
inline void OpenStandardDescriptors() {
  // open() gives the lowest number that is free.
  int descriptor = ::open("/dev/null", O_RDWR);
  while (descriptor >= 0 && descriptor <= STDERR_FILENO) descriptor = ::open("/dev/null", O_RDWR);
  if (descriptor >= 0) ::close(descriptor);
}

/// A write beyond RLIMIT_FSIZE then fails with EFBIG, as one on a full disk does with ENOSPC, where
/// the signal would end the program without a word.
inline void IgnoreFileSizeSignal() { ::signal(SIGXFSZ, SIG_IGN); }

}  // namespace quantgate
