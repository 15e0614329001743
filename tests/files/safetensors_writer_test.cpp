#include "files/safetensors_writer.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "files/safetensors.h"
#include "support/scratch.h"

namespace dgemma::testing {
namespace {

TEST(SafetensorsWriter, IsReadBackAsItWas) {
    const ScratchDir scratch;
    const std::vector<float> first = {1.5f, -2, 3, 0, 1e-30f, 7}, second = {42}, none;
    const auto file = scratch.path() / "a b.safetensors";
    ASSERT_TRUE(files::write_safetensors(
        file, {{"layer \"1\"", {{2, 3}, first}}, {"one", {{1}, second}}, {"none", {{0, 5}, none}}}));
    const auto read = files::Safetensors::open(file);
    ASSERT_TRUE(read) << read.error().message;
    ASSERT_EQ(read->tensors().size(), 3u);
    const Tensor* tensor = read->find("layer \"1\"");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->shape, (Shape{2, 3}));
    EXPECT_EQ(std::memcmp(tensor->data, first.data(), sizeof(float) * first.size()), 0);
    EXPECT_EQ(read->find("none")->elements(), 0);
}

TEST(SafetensorsWriter, RefusesWhatCannotBeAndLeavesNothingBehind) {
    const ScratchDir scratch;
    const std::vector<float> values = {1, 2, 3};
    const auto file = scratch.path() / "x.safetensors";
    EXPECT_EQ(files::write_safetensors(file, {{"t", {{2, 2}, values}}}).error().kind, ErrorKind::invalid);
    EXPECT_EQ(files::write_safetensors(scratch.path() / "no" / "x", {{"t", {{3}, values}}}).error().kind,
              ErrorKind::io);
    EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

}  // namespace
}  // namespace dgemma::testing
