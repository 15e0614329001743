// Without a device nothing in this program can run; what it says then is tested too.
#include "cuda/device.h"

#include <gtest/gtest.h>

#include "backend/cuda/cuda.h"

namespace dgemma::testing {
namespace {

class NeedsDevice final : public ::testing::Environment {
  public:
    void SetUp() override {
        std::string why;
        if (!backend::cuda_available(&why)) GTEST_SKIP() << "skipped: " << why;
    }
};
[[maybe_unused]] ::testing::Environment* const needs_device =
    ::testing::AddGlobalTestEnvironment(new NeedsDevice);

TEST(Device, IsNamedWithItsMemory) {
    const auto devices = backend::cuda_devices();
    ASSERT_TRUE(devices.ok()) << devices.error().message;
    ASSERT_FALSE(devices.value().empty());
    const backend::CudaDevice& d = devices.value()[0];
    EXPECT_FALSE(d.name.empty());
    EXPECT_GE(d.major, 8);
    EXPECT_GT(d.multiprocessors, 0);
    EXPECT_GT(d.free_bytes, 0u);
    EXPECT_LE(d.free_bytes, d.memory_bytes);
    RecordProperty("device", d.name);
}

TEST(Device, ANumberThatIsNotThereIsRefused) {
    const auto backend = backend::make_cuda_backend(backend::Precision::bf16, {.device = 1000});
    ASSERT_FALSE(backend.ok());
    EXPECT_EQ(backend.error().kind, ErrorKind::usage);
}

// Too much memory is an error with the number, and everything works afterwards.
TEST(Device, MemoryThatIsNotThereIsRefused) {
    const auto b = make_device({backend::Precision::bf16, true});
    const auto storage = b->allocate(std::size_t{1} << 45);
    ASSERT_FALSE(storage.ok());
    EXPECT_EQ(storage.error().kind, ErrorKind::io);
    EXPECT_NE(storage.error().message.find("33554432 MiB"), std::string::npos) << storage.error().message;
    const DeviceMat x(*b, 2, 8, std::vector<float>(16, 1.5f));
    EXPECT_EQ(x.values(), std::vector<float>(16, 1.5f));
}

// Working memory that cannot be had fails the pass, not the process, and not the next pass.
TEST(Device, AnOperationOutOfMemoryFailsItsPass) {
    const auto b = make_device({backend::Precision::f32, true});
    const backend::PassInputs inputs{.rows = 1, .numbers = {}, .segments = {}, .canvases = {}};
    ASSERT_TRUE(b->begin_pass(inputs).ok());
    const DeviceMat x(*b, 1, 8, std::vector<float>(8, 1.0f));
    const HostTensor small(std::vector<float>(64, 0.1f), Dtype::f32, {8, 8});
    const auto w = weight(*b, small);
    const backend::Mat huge{x.mat.data, std::int64_t{1} << 40, 8};
    b->gated_mlp(huge, *w, *w, *w, huge);
    const auto end = b->end_pass();
    ASSERT_FALSE(end.ok());
    EXPECT_EQ(end.error().kind, ErrorKind::io);
    ASSERT_TRUE(b->begin_pass(inputs).ok());
    EXPECT_TRUE(b->end_pass().ok());
}

// A weight of several pieces of the copying, the last one short, arrives as it was; so does a second one,
// whose pieces take their turn where the first one's ended.
TEST(Device, LargeWeightsArriveWhole) {
    const auto b = make_device({backend::Precision::f32, true});
    constexpr std::int64_t rows = 40'001, cols = 2'304;  // 184 MB in bf16
    std::vector<std::uint16_t> numbers(static_cast<std::size_t>(rows * cols));
    const auto number = [](std::int64_t i, std::uint32_t of) {  // a finite one
        return static_cast<std::uint16_t>((static_cast<std::uint32_t>(i) * 2654435761u + of) >> 17 & 0x3fffu);
    };
    std::vector<std::int32_t> ids;
    for (std::int32_t id = 0; id < rows; id += 37) ids.push_back(id);
    ids.push_back(rows - 1);
    for (const std::uint32_t of : {1u, 7777u}) {
        for (std::size_t i = 0; i < numbers.size(); ++i)
            numbers[i] = number(static_cast<std::int64_t>(i), of);
        const auto table = DeviceMat::take(b->prepare(
            Tensor{reinterpret_cast<const std::byte*>(numbers.data()), Dtype::bf16, {rows, cols}}));
        std::fill(numbers.begin(), numbers.end(), std::uint16_t{0});  // it has been read
        const DeviceMat out(*b, static_cast<std::int64_t>(ids.size()), cols);
        b->embed(ids, *table, 1.0f, out.mat);
        const std::vector<float> got = out.values();
        for (std::size_t r = 0; r < ids.size(); ++r) {
            for (std::int64_t c = 0; c < cols; ++c) {
                ASSERT_EQ(got[r * cols + static_cast<std::size_t>(c)],
                          bf16_to_f32(number(ids[r] * cols + c, of)))
                    << "row " << ids[r] << " column " << c;
            }
        }
    }
}

}  // namespace
}  // namespace dgemma::testing
