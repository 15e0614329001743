// SHA-256 (FIPS 180-4), for telling files apart by their content.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dgemma {

// Takes the message in pieces of any size.
class Sha256 {
  public:
    void update(std::string_view bytes);

    // The 32 bytes of the hash. The object is spent afterwards.
    std::array<std::uint8_t, 32> digest();

  private:
    void take_blocks(const unsigned char* blocks, std::size_t count);  // of 64 bytes

    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<unsigned char, 64> block_{};  // what does not fill a block yet
    std::size_t filled_ = 0;
    std::uint64_t length_ = 0;  // of the message so far, in bytes
};

// The hash of `bytes` as 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view bytes);

}  // namespace dgemma
