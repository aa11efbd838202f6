// How glibc's allocator serves a server that receives and sends in pieces of a mebibyte.
#pragma once

namespace quantgate {

/// Keeps buffers up to 32 MiB in the heap, where they are used again, instead of mapping each anew:
/// zeroing fresh pages costs as much as copying the data. For programs; a library leaves the
/// allocator alone.
void KeepLargeBuffers();

}  // namespace quantgate
