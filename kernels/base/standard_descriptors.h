// Descriptors 0, 1 and 2 of a program that may have been started without them.
#pragma once

#include <fcntl.h>
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

}  // namespace quantgate
