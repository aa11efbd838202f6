// CRC32C (Castagnoli, RFC 3720 appendix B.4) of upload chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace quantgate {

uint32_t Crc32c(std::span<const std::byte> bytes);

}  // namespace quantgate
