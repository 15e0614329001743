// From what a person types after -m to a path: a file, a directory, or a name in the hub cache.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace dgemma::files {

// `spec` is an existing file or directory, which always wins, or "org/name" with an optional "@revision" (a
// branch, a tag, "refs/pr/N", a commit). A name is looked up in the hub cache as `hf download` fills it
// (models--org--name/refs/<revision> names the commit, snapshots/<commit> holds the files); nothing is
// downloaded. Errors: usage (an empty spec), not_found (prints the command that downloads it), invalid (a
// damaged cache).
Result<std::filesystem::path> locate_model(std::string_view spec);

// The hub cache: HF_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else
// ~/.cache/huggingface/hub. Nothing where that needs HOME and HOME is not set.
std::optional<std::filesystem::path> hub_cache_dir();

// A snapshot in a hub cache, recognised by its path: .../models--org--name/snapshots/<commit>.
struct HubSnapshot {
    std::string repo;      // "org/name"
    std::string revision;  // the commit; empty where it is what refs/main names
};
std::optional<HubSnapshot> hub_snapshot(const std::filesystem::path& directory);

// The exact command that fetches `file` of the model in `directory`, or the whole model where `file` is
// empty: "hf download org/name model-00002-of-00011.safetensors --local-dir models/x". A directory outside a
// hub cache does not say which repository it is of: `repo_hint` ("org/name" from its config.json) is used,
// else the words ORG/NAME.
std::string download_command(const std::filesystem::path& directory, std::string_view file,
                             std::string_view repo_hint);

// Whether text has the form of a hub name, "org/name".
bool is_repo_name(std::string_view text);

}  // namespace dgemma::files
