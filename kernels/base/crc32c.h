// CRC-32C (Castagnoli), RFC 3720 section 12.1 and appendix B.4: the check of one chunk of an
// upload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace quantgate {

/// The CRC of what `crc` stands for (0: nothing yet) followed by `bytes`.
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes);

/// The same without special instructions: what processors without SSE4.2 run.
uint32_t ExtendCrc32cByTable(uint32_t crc, std::span<const std::byte> bytes);

}  // namespace quantgate
