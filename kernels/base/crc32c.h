// CRC-32C (Castagnoli), RFC 3720 section 12.1 and appendix B.4: protects each chunk of an upload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace quantgate {

/// The CRC of some bytes followed by `bytes`, where `crc` is that of the former: 0 for none.
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes);

/// ExtendCrc32c without special instructions, for processors that lack SSE4.2.
uint32_t ExtendCrc32cByTable(uint32_t crc, std::span<const std::byte> bytes);

}  // namespace quantgate
