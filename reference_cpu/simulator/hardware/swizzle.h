/// @file
/// How the copy engine and wgmma permute a tile in shared memory, against bank conflicts.
#pragma once

#include "simt.h"

inline namespace simulated {

/// The span within which 16-byte pieces change places. A tile's rows are as long as the span, and it begins at a multiple of
/// eight of them; bits of an address become their exclusive or with others:
///
///     bytes_128: bits 4..6 with bits 7..9     bytes_64: bits 4..5 with bits 7..8     bytes_32: bit 4 with bit 7
///
/// The values are those of a matrix descriptor (ISA "Matrix descriptor"; "Swizzling modes").
enum class Swizzle : uint32_t { bytes_128 = 1, bytes_64 = 2, bytes_32 = 3 };

/// In bytes.
__forceinline__ int span_of(Swizzle swizzle) { return 256 >> static_cast<int>(swizzle); }

}  // namespace simulated
