#include "base/sha256.h"

#include <algorithm>
#include <bit>

#include "base/sha256_blocks.h"

namespace dgemma {

void sha256_portable(std::uint32_t* state, const unsigned char* blocks, std::size_t count) {
    for (; count > 0; --count, blocks += 64) {
        std::array<std::uint32_t, 64> w;
        for (std::size_t i = 0; i < 16; ++i) {
            w[i] = std::uint32_t{blocks[4 * i]} << 24 | std::uint32_t{blocks[4 * i + 1]} << 16 |
                   std::uint32_t{blocks[4 * i + 2]} << 8 | std::uint32_t{blocks[4 * i + 3]};
        }
        for (std::size_t i = 16; i < 64; ++i) {
            const std::uint32_t near = w[i - 15], far = w[i - 2];
            w[i] = w[i - 16] + (std::rotr(near, 7) ^ std::rotr(near, 18) ^ near >> 3) + w[i - 7] +
                   (std::rotr(far, 17) ^ std::rotr(far, 19) ^ far >> 10);
        }
        std::array<std::uint32_t, 8> mixed;
        std::copy_n(state, 8, mixed.begin());
        auto& [a, b, c, d, e, f, g, h] = mixed;
        for (std::size_t i = 0; i < 64; ++i) {
            const std::uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                     ((e & f) ^ (~e & g)) + sha256_round_constants[i] + w[i];
            const std::uint32_t t2 =
                (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            h = g;
            g = f;
            f = e;
            e = d + t1;
            d = c;
            c = b;
            b = a;
            a = t1 + t2;
        }
        for (std::size_t i = 0; i < 8; ++i) state[i] += mixed[i];
    }
}

void Sha256::take_blocks(const unsigned char* blocks, std::size_t count) {
    static const Sha256Blocks chosen =
        sha256_instructions() != nullptr ? sha256_instructions() : sha256_portable;
    chosen(state_.data(), blocks, count);
}

void Sha256::update(std::string_view bytes) {
    length_ += bytes.size();
    while (!bytes.empty()) {
        if (filled_ == 0 && bytes.size() >= block_.size()) {
            const std::size_t whole = bytes.size() / block_.size();
            take_blocks(reinterpret_cast<const unsigned char*>(bytes.data()), whole);
            bytes.remove_prefix(whole * block_.size());
            continue;
        }
        const std::size_t taken = std::min(bytes.size(), block_.size() - filled_);
        std::copy_n(bytes.data(), taken, block_.begin() + static_cast<std::ptrdiff_t>(filled_));
        filled_ += taken;
        bytes.remove_prefix(taken);
        if (filled_ == block_.size()) {
            take_blocks(block_.data(), 1);
            filled_ = 0;
        }
    }
}

std::array<std::uint8_t, 32> Sha256::digest() {
    const std::uint64_t bits = length_ * 8;
    // A one bit, then zeros up to the last eight bytes of a block, then the length in bits.
    std::string padding(1, '\x80');
    padding.append((filled_ < 56 ? 55 : 119) - filled_, '\0');
    for (int shift = 56; shift >= 0; shift -= 8) padding += static_cast<char>(bits >> shift & 0xFF);
    update(padding);
    std::array<std::uint8_t, 32> out;
    for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return out;
}

std::string sha256_hex(std::string_view bytes) {
    Sha256 hash;
    hash.update(bytes);
    std::string out;
    for (const std::uint8_t byte : hash.digest()) {
        out += "0123456789abcdef"[byte >> 4];
        out += "0123456789abcdef"[byte & 15];
    }
    return out;
}

}  // namespace dgemma
