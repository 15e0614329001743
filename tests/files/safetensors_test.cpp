#include "files/safetensors.h"

#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/scratch.h"
#include "support/shared.h"

namespace dgemma::files {
namespace {

using testing::safetensors_bytes;
using testing::ScratchDir;

Result<Safetensors> parse(const std::string& bytes) {
    return Safetensors::parse(std::as_bytes(std::span(bytes)), "x.safetensors");
}

// Parses a header over `data` bytes of zeros and returns the message of the refusal.
std::string refusal(std::string_view header, std::size_t data, ErrorKind kind = ErrorKind::invalid) {
    const auto result = parse(safetensors_bytes(header, std::string(data, '\0')));
    if (result) return "accepted";
    EXPECT_EQ(result.error().kind, kind) << result.error().message;
    EXPECT_NE(result.error().message.find("x.safetensors"), std::string::npos) << result.error().message;
    EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
    return result.error().message;
}

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

TEST(Safetensors, ReadsTensorsMetadataAndOddOffsets) {
    const std::string header = R"({"__metadata__":{"format":"pt"},
        "a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},
        "b":{"dtype":"F32","shape":[],"data_offsets":[3,7]},
        "c":{"dtype":"I64","shape":[0,5],"data_offsets":[7,7]},
        "d":{"dtype":"BF16","shape":[1,2],"data_offsets":[7,11]}})";
    const std::string data("\x01\x02\x03\x00\x00\x80\x3f\x80\x3f\x00\xc0", 11);
    const std::string bytes = safetensors_bytes(header, data);
    auto file = parse(bytes);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->tensors().size(), 4u);
    EXPECT_EQ(file->metadata().at("format"), "pt");
    EXPECT_EQ(to_i32(*file->find("a")), (std::vector<std::int32_t>{1, 2, 3}));
    EXPECT_EQ(to_f32(*file->find("b")), std::vector<float>{1.0f});
    EXPECT_EQ(to_f32(*file->find("d")), (std::vector<float>{1.0f, -2.0f}));
    EXPECT_EQ(file->find("c")->elements(), 0);
    EXPECT_EQ(file->find("d")->shape, (Shape{1, 2}));
    EXPECT_EQ(file->find("e"), nullptr);
}

TEST(Safetensors, AcceptsAFileWithoutTensors) {
    auto file = parse(safetensors_bytes("{}      ", ""));
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_TRUE(file->tensors().empty());
}

TEST(Safetensors, TensorsSurviveAMove) {
    const ScratchDir scratch;
    auto first = Safetensors::open(scratch.write(
        "m.safetensors", safetensors_bytes(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                                           std::string("\x00\x00\x00\x40", 4))));
    ASSERT_TRUE(first) << first.error().message;
    const Safetensors second = std::move(first).value();
    EXPECT_EQ(to_f32(*second.find("a")), std::vector<float>{2.0f});
}

TEST(Safetensors, ReadsTheGoldens) {
    const testing::Golden golden(*testing::golden_dir("text-f32"));
    EXPECT_GT(golden.tensors().size(), 100u);
    for (const auto& [name, tensor] : golden.tensors()) ASSERT_TRUE(tensor) << name;
}

TEST(Safetensors, RefusesALyingLength) {
    for (std::size_t n : {0u, 1u, 7u})
        EXPECT_SAYS(parse(std::string(n, '\0')).error().message, "fewer than the 8");
    EXPECT_SAYS(parse(std::string(8, '\xff')).error().message, "the 100000000 the format allows");
    EXPECT_SAYS(parse(std::string("\x00\x00\x00\x00\x00\x00\x00\x80{}", 10)).error().message,
                "the format allows");
    EXPECT_SAYS(parse(std::string("\x03\x00\x00\x00\x00\x00\x00\x00{}", 10)).error().message,
                "it was cut short");
    EXPECT_SAYS(parse(std::string(8, '\0')).error().message, "no JSON");
    std::string hundred_mb_and_one(8, '\0');
    for (std::size_t i = 0; i < 8; ++i)
        hundred_mb_and_one[i] = static_cast<char>(std::uint64_t{100'000'001} >> (8 * i) & 0xFF);
    EXPECT_SAYS(parse(hundred_mb_and_one + "{}").error().message, "the format allows");
}

TEST(Safetensors, RefusesBrokenJson) {
    EXPECT_SAYS(refusal("{", 0), "no JSON");
    EXPECT_SAYS(refusal("[]", 0), "no JSON object");
    EXPECT_SAYS(refusal("null", 0), "no JSON object");
    EXPECT_SAYS(refusal("{} x", 0), "no JSON");
    EXPECT_SAYS(refusal("{\"\xff\":1}", 0), "no JSON");
    EXPECT_SAYS(refusal(std::string("{}\0", 3), 0), "no JSON");
    EXPECT_SAYS(refusal(std::string(200000, '['), 0), "no JSON");
    EXPECT_SAYS(refusal(R"({"a":)" + std::string(5000, '[') + std::string(5000, ']') + "}", 0), "no JSON");
    EXPECT_SAYS(refusal(R"({"a":1})", 0), "described by no object");
    EXPECT_SAYS(refusal(R"({"__metadata__":[]})", 0), "no JSON object");
    EXPECT_SAYS(refusal(R"({"__metadata__":{"a":1}})", 0), "no string");
    EXPECT_SAYS(refusal(R"({"__metadata__":{},"__metadata__":{}})", 0), "twice");
}

TEST(Safetensors, RefusesMissingAndMistypedKeys) {
    EXPECT_SAYS(refusal(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1), "no dtype");
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1), "no shape");
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[1]}})", 1), "no data_offsets");
    EXPECT_SAYS(refusal(R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,1]}})", 1), "no string");
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1), "no list");
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", 1), "whole number");
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1), "whole number");
    for (const char* offsets : {"0", "[]", "[0]", "[0,1,1]", "[0,\"1\"]", "[-1,0]", "[0,1.5]"}) {
        EXPECT_SAYS(
            refusal(std::string(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":)") + offsets + "}}", 1),
            "pair of whole");
    }
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,99999999999999999999]}})", 1),
                "no JSON");
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1),
                "\"dtype\" twice");
}

TEST(Safetensors, RefusesUnknownTypesByName) {
    for (const char* type : {"F64", "F8_E5M2", "Q4_K", "bf16", ""}) {
        const auto message =
            refusal(std::string(R"({"a":{"dtype":")") + type + R"(","shape":[1],"data_offsets":[0,8]}})", 8,
                    ErrorKind::unsupported);
        EXPECT_SAYS(message, std::string("\"") + type + "\"");
    }
}

TEST(Safetensors, RefusesImpossibleShapes) {
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1), "whole number");
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})", 1),
                "whole number");
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
                "impossible shape");
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"I64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0),
                "impossible shape");
    // The product of all sizes is 0, that of the first two is beyond 64 bits.
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", 0),
                "impossible shape");
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1),
                "8 dimensions");
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"BF16","shape":[3],"data_offsets":[0,4]}})", 4), "needs 6");
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"BF16","shape":[0],"data_offsets":[0,4]}})", 4), "needs 0");
}

TEST(Safetensors, RefusesWrongOffsets) {
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[2,1]}})", 2), "reversed");
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 3), "cut short");
    EXPECT_SAYS(
        refusal(
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615]}})",
            4),
        "cut short");
    EXPECT_SAYS(
        refusal(
            R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
            3),
        "shares bytes");
    EXPECT_SAYS(
        refusal(
            R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
            2),
        "shares bytes");
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2),
                "belong to no tensor");
    EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 2), "1 bytes at its end");
    EXPECT_SAYS(
        refusal(
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
            3),
        "belong to no tensor");
    EXPECT_SAYS(refusal("{}", 1), "1 bytes at its end");
}

TEST(Safetensors, RefusesANameTwiceHoweverItIsWritten) {
    EXPECT_SAYS(
        refusal(
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
            2),
        "\"a\" is described twice");
    EXPECT_SAYS(
        refusal(
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
            2),
        "\"a\" is described twice");
}

TEST(Safetensors, NamesInMessagesAreCutAndPrintable) {
    const auto message = refusal(R"({"\u001b[31m)" + std::string(5000, 'x') + R"(":1})", 0);
    EXPECT_SAYS(message, "\\x1B[31mxxx");
    EXPECT_LT(message.size(), 600u);
}

TEST(Safetensors, OpenRefusesWhatIsNoFile) {
    const ScratchDir scratch;
    const auto kind_of = [](const std::filesystem::path& path) {
        const auto result = Safetensors::open(path);
        return result ? std::optional<ErrorKind>() : result.error().kind;
    };
    EXPECT_EQ(kind_of(scratch.path() / "absent"), ErrorKind::not_found);
    EXPECT_EQ(kind_of(scratch.write("empty", "") / "below"), ErrorKind::not_found);
    EXPECT_EQ(kind_of(scratch.path()), ErrorKind::io);
    EXPECT_EQ(kind_of(scratch.path() / "empty"), ErrorKind::io);
    EXPECT_EQ(kind_of("/dev/zero"), ErrorKind::io);
    const auto pipe = scratch.path() / "pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_EQ(kind_of(pipe), ErrorKind::io);  // and does not wait for a writer
    EXPECT_EQ(kind_of(std::string(5000, 'x')), ErrorKind::io);
}

TEST(Safetensors, OpenNamesAFileWithoutPermission) {
    if (::geteuid() == 0) GTEST_SKIP() << "skipped: root may read everything";
    const ScratchDir scratch;
    const auto path = scratch.write("secret", "xxxxxxxxxx");
    std::filesystem::permissions(path, std::filesystem::perms::none);
    EXPECT_SAYS(Safetensors::open(path).error().message, "no permission");
}

// Every way to cut a good file short, and every single byte of its header turned over, gives a sentence or
// the file.
TEST(Safetensors, NoTruncationOrFlippedByteCrashes) {
    const std::string good = testing::safetensors_of({{"a", {"BF16", {2, 3}}}, {"b", {"U8", {5}}}});
    ASSERT_TRUE(parse(good));
    for (std::size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(parse(good.substr(0, n))) << n;
    for (std::size_t i = 0; i < good.size() - 17; ++i) {
        for (int bit = 0; bit < 8; ++bit) {
            std::string bad = good;
            bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
            const auto result = parse(bad);
            if (!result) {
                EXPECT_FALSE(result.error().message.empty());
                continue;
            }
            for (const auto& [name, tensor] : result->tensors()) {
                EXPECT_GE(tensor.data, reinterpret_cast<const std::byte*>(bad.data()));
                EXPECT_LE(tensor.data + tensor.bytes(),
                          reinterpret_cast<const std::byte*>(bad.data() + bad.size()));
            }
        }
    }
}

}  // namespace
}  // namespace dgemma::files
