// A model on disk: the tensors of all its safetensors files, or of a pack, under one roof, and the text files
// beside them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/tensor.h"
#include "base/weight_view.h"
#include "files/pack.h"
#include "files/safetensors.h"

namespace dgemma::files {

// An open checkpoint. It keeps its files mapped; its tensors are views that live as long as it does, also
// after a move.
class Checkpoint {
  public:
    // A directory, or one .safetensors file (whose directory then gives config.json and the rest; a file that
    // is one shard of a set means the whole set). The directory of a pack, or its dgemma-pack.json, is that
    // pack, whatever lies beside it.
    //
    // Which files of a directory count else: those that model.safetensors.index.json names, if it is there;
    // else model.safetensors; else the complete set model-0000N-of-0000M.safetensors. Anything else is left
    // alone.
    //
    // Errors: not_found (no such path, no weights in it, a missing shard; says which command downloads them);
    // invalid (a broken file or index, a tensor in two files, an index that leads out of the directory or
    // does not agree with the files); unsupported (GGUF, PyTorch or .dgq files instead of safetensors); those
    // of Pack::open.
    static Result<Checkpoint> open(const std::filesystem::path& path);

    // Any tensor as a weight: of a pack in whatever encoding and layout it has, else plain rows.
    [[nodiscard]] std::optional<WeightView> weight(std::string_view name) const;
    [[nodiscard]] std::vector<std::string> names() const;  // of all weights, sorted

    // The tensors that are plain rows: of a pack some, else all.
    [[nodiscard]] const Tensor* find(std::string_view name) const;
    [[nodiscard]] const TensorMap& tensors() const { return tensors_; }

    [[nodiscard]] bool is_pack() const { return pack_.has_value(); }
    [[nodiscard]] const Pack* pack() const { return pack_ ? &*pack_ : nullptr; }

    [[nodiscard]] const std::filesystem::path& path() const { return directory_; }  // the directory
    [[nodiscard]] const std::vector<std::filesystem::path>& files() const { return files_; }
    // .safetensors files of the directory that do not belong to the checkpoint, by name; sorted.
    [[nodiscard]] const std::vector<std::string>& ignored_files() const { return ignored_; }

    // The text files beside the weights; `name` is a plain file name. has_file: whether there is one, sound
    // or not (is_there). read_text: not_found says which command downloads it; else the errors of
    // files::read_text.
    [[nodiscard]] bool has_file(std::string_view name) const;
    [[nodiscard]] Result<std::string> read_text(std::string_view name) const;
    [[nodiscard]] Result<std::string> config_text() const { return read_text("config.json"); }

  private:
    static Result<Checkpoint> open_pack(const std::filesystem::path& directory);

    std::filesystem::path directory_;
    std::vector<std::filesystem::path> files_;
    std::vector<std::string> ignored_;
    std::vector<Safetensors> shards_;
    std::optional<Pack> pack_;
    TensorMap tensors_;
};

// Ok where all weights are stored as plain numbers, or as a pack. Else `unsupported`, naming the format: an
// MLX-quantised, compressed-tensors, ModelOpt, bitsandbytes, GPTQ or AWQ checkpoint, recognised by
// config.json and by the tensors that come with each (contract/checkpoints.md 2 and 4). A missing or broken
// config.json is not looked into here.
Status check_plain_storage(const Checkpoint& checkpoint);

}  // namespace dgemma::files
