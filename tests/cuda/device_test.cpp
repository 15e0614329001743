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

}  // namespace
}  // namespace dgemma::testing
