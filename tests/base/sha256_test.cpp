#include "base/sha256.h"

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/sha256_blocks.h"

namespace dgemma {
namespace {

// The examples of FIPS 180-4 and of NIST's validation suite.
TEST(Sha256, GivesThePublishedHashes) {
    EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(
        sha256_hex("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqr"
                   "lmnopqrsmnopqrstnopqrstu"),
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    EXPECT_EQ(sha256_hex("\xbd"), "68325720aabd7c82f30f554b313d0570c95accbb7dc4b5aae11204c08ffe732b");
    EXPECT_EQ(sha256_hex("\xc9\x8c\x8e\x55"),
              "7abc22c0ae5af26ce93dbb94433a0e0b2e119d014f8e7f65bd56c61ccccd9504");
    EXPECT_EQ(sha256_hex(std::string(55, '\0')),
              "02779466cdec163811d078815c633f21901413081449002f24aa3e80f0b88ef7");
    EXPECT_EQ(sha256_hex(std::string(56, '\0')),
              "d4817aa5497628e7c77e6b606107042bbba3130888c5f47a375e6179be789fbb");
    EXPECT_EQ(sha256_hex(std::string(64, '\0')),
              "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b");
    EXPECT_EQ(sha256_hex(std::string(1000000, 'a')),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnThePieces) {
    std::string message;
    for (int i = 0; i < 300; ++i) message += static_cast<char>(i);
    for (std::size_t piece = 1; piece <= 130; ++piece) {
        Sha256 hash;
        for (std::size_t pos = 0; pos < message.size(); pos += piece)
            hash.update(std::string_view(message).substr(pos, piece));
        Sha256 whole;
        whole.update(message);
        EXPECT_EQ(hash.digest(), whole.digest()) << piece;
    }
}

TEST(Sha256, InstructionsMadeForItMixTheSame) {
    const Sha256Blocks instructions = sha256_instructions();
    if (instructions == nullptr) GTEST_SKIP() << "skipped: this machine has no SHA instructions";
    std::vector<unsigned char> message;
    for (int i = 0; i < 64 * 5 + 1; ++i) message.push_back(static_cast<unsigned char>(i * i));
    // From an odd address, as the pieces of a file lie.
    std::array<std::uint32_t, 8> plain = {1, 2, 3, 4, 5, 6, 7, 0xFFFFFFFF}, made = plain;
    sha256_portable(plain.data(), message.data() + 1, 5);
    instructions(made.data(), message.data() + 1, 5);
    EXPECT_EQ(made, plain);
}

}  // namespace
}  // namespace dgemma
