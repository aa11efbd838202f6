// Descriptors 0, 1 and 2 of a program that may have been started without them.
#pragma once

namespace quantgate {

/// Opens /dev/null for those that are closed. The number of a closed one would go to the next file
/// that is opened, one of a store among them, and what is printed would be written there. Call it
/// first in main().
void OpenStandardDescriptors();

}  // namespace quantgate
