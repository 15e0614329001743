// Any text as config.json, generation_config.json and the index of the shards: a sentence, or values within
// their bounds.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "files/shard_names.h"
#include "model/config.h"
#include "model/tensor_list.h"

namespace {

void require(bool held) {
    if (!held) std::abort();
}

void check(const dgemma::model::Config& config) {
    const auto& text = config.text;
    require(text.top_k >= 1 && text.top_k <= text.experts && !text.layers.empty());
    for (const auto& layer : text.layers) {
        require(layer.head_dim > 0 && layer.head_dim % 2 == 0 && layer.kv_heads > 0 &&
                text.heads % layer.kv_heads == 0);
        require(layer.rotated_pairs >= 0 && layer.rotated_pairs <= layer.head_dim / 2);
    }
    for (const auto& tensor : dgemma::model::expected_tensors(config)) {
        for (const auto size : tensor.shape) require(size > 0);
        require(dgemma::elements_of(tensor.shape) > 0);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    if (const auto config = dgemma::model::parse_config(text, "fuzz")) {
        check(*config);
    } else {
        require(!config.error().message.empty());
    }
    if (const auto generation = dgemma::model::parse_generation_config(text, "fuzz")) {
        require(generation->t_min >= 0 && generation->t_max > generation->t_min &&
                generation->max_denoising_steps > 0);
    }
    if (const auto index = dgemma::files::parse_shard_index(text, "fuzz")) {
        for (const auto& file : index->files) require(dgemma::files::is_plain_file_name(file));
    }
    return 0;
}
