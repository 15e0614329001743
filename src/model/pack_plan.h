// Which tensor of a model goes into a pack in which format: profiles, and what may be set.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "files/checkpoint.h"
#include "files/pack_writer.h"
#include "model/config.h"
#include "model/tensor_list.h"

namespace dgemma::model {

// What a matrix may be written as (base/weight_view.h).
enum class PackFormat : std::uint8_t {
    bf16,   // plain, in tiles
    q8,     // affine8, in tiles
    q4,     // affine4, in tiles
    fp8,    // fp8_row
    nvfp4,  // nvfp4
};
std::string_view name_of(PackFormat format);
std::span<const std::string_view> pack_format_names();  // in the order of PackFormat; also the profiles
std::span<const std::string_view> pack_class_names();   // experts, attn, dense, sc, vision

// The format of each class whose format can be chosen. Everything else is locked: the embedding (which is the
// head and the soft embeddings too), the router, norms and scalars stay as they are stored, in rows.
struct PackFormats {
    std::string profile;
    std::array<PackFormat, 5> of{};  // in the order of pack_class_names()
    bool changed = false;            // by a --set
};

//             experts  attn  dense  sc    vision
//   bf16      bf16     bf16  bf16   bf16  bf16
//   q8        q8       q8    q8     q8    bf16
//   q4        q4       q8    q8     q8    bf16
//   fp8       fp8      fp8   fp8    bf16  bf16
//   nvfp4     nvfp4    fp8   fp8    bf16  bf16
//
// The images' tower is half a gigabyte in 8 bits and runs once per image, and nobody has published what
// quantising it costs; published FP8 and NVFP4 models leave it and self-conditioning in bf16.
//
// `sets` are "class=format". Errors: usage, for an unknown profile, class or format, and for a locked class,
// saying why it is locked.
Result<PackFormats> choose_formats(std::string_view profile, std::span<const std::string> sets);

// "experts": "q4", ..., "embedding": "as stored", for the manifest.
std::map<std::string, std::string> format_words(const PackFormats& formats);

struct PlannedTensor {
    files::PackItem item;
    std::string source;  // its name in the checkpoint, if it is another
    TensorClass group = TensorClass::norms;
};

// One tensor. stored: its type in the model. A matrix whose width is no multiple of what its format's groups
// need stays bf16, and item.kept says so.
PlannedTensor plan_tensor(const ExpectedTensor& expected, Dtype stored, const PackFormats& formats);

// Every tensor that the checkpoint has, in the order of expected_tensors. The two matrices of a layer's
// experts are of one format: where one cannot be, the other is not either. Errors: those of check_tensors;
// unsupported, where the checkpoint is a pack that is quantised already.
Result<std::vector<PlannedTensor>> plan_pack(const Config& config, const files::Checkpoint& checkpoint,
                                             const PackFormats& formats);

// The same for a model that does not exist yet, of bf16 tensors; without a vision tower.
std::vector<PlannedTensor> plan_synthetic_pack(const Config& config, const PackFormats& formats);

}  // namespace dgemma::model
