#include "files/locate.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "base/quote.h"
#include "files/mapping.h"

namespace dgemma::files {

namespace fs = std::filesystem;

namespace {

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
}

// Nothing where it needs HOME and HOME is not set.
std::optional<fs::path> expand_home(const std::string& path) {
    if (path != "~" && !path.starts_with("~/")) return path;
    const std::string home = environment("HOME");
    if (home.empty()) return std::nullopt;
    return path == "~" ? fs::path(home) : fs::path(home) / path.substr(2);
}

bool is_word(std::string_view text) {
    const auto allowed = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
               c == '_' || c == '-';
    };
    return !text.empty() && text.size() <= 96 && text != "." && text != ".." && text.front() != '-' &&
           std::all_of(text.begin(), text.end(), allowed);
}

// A revision is a path below refs/, so each of its parts must be a plain word.
bool is_revision(std::string_view text) {
    while (true) {
        const auto slash = text.find('/');
        if (!is_word(text.substr(0, slash))) return false;
        if (slash == std::string_view::npos) return true;
        text.remove_prefix(slash + 1);
    }
}

bool is_commit(std::string_view text) {
    return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    });
}

std::string trimmed(std::string_view text) {
    constexpr std::string_view blank = " \t\r\n";
    const auto first = text.find_first_not_of(blank);
    if (first == std::string_view::npos) return {};
    return std::string(text.substr(first, text.find_last_not_of(blank) - first + 1));
}

// As a shell takes it as one word.
std::string shell_word(const std::string& text) {
    const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
        return is_word(std::string_view(&c, 1)) || c == '/' || c == '.' || c == '-' || c == '+' || c == ',' ||
               c == '=';
    });
    if (plain) return text;
    std::string out = "'";
    for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
}

std::vector<std::string> snapshots_in(const fs::path& repo) {
    std::vector<std::string> out;
    std::error_code error;
    for (fs::directory_iterator it(repo / "snapshots", error), end; !error && it != end;
         it.increment(error)) {
        out.push_back(it->path().filename().native());
    }
    std::sort(out.begin(), out.end());
    return out;
}

Result<fs::path> locate_in_hub(std::string_view name, std::string_view revision) {
    const auto known = hub_cache_dir();
    if (!known) {
        return Error{
            ErrorKind::not_found,
            fmt::format("There is no file or directory {} here, and without HOME it is not known where "
                        "the hub cache is; set HOME or HF_HOME, or give the directory of the model.",
                        quote(name))};
    }
    const fs::path& cache = *known;
    const auto slash = name.find('/');
    const fs::path repo =
        cache / fmt::format("models--{}--{}", name.substr(0, slash), name.substr(slash + 1));
    const std::string wanted = revision.empty() ? "main" : std::string(revision);
    const std::string command = fmt::format(
        "hf download {}{}", name, revision.empty() ? std::string() : fmt::format(" --revision {}", revision));

    std::error_code error;
    if (!fs::is_directory(repo, error)) {
        return Error{
            ErrorKind::not_found,
            fmt::format(
                "There is no file or directory {} here, and the hub cache {} does not hold that model; "
                "download it with: {}",
                quote(name), quote(cache.native()), command)};
    }
    std::string commit = wanted;
    const bool pull_request = wanted.rfind("refs/", 0) == 0;
    const fs::path ref = pull_request ? repo / wanted : repo / "refs" / wanted;
    if (fs::is_regular_file(ref, error)) {
        DGEMMA_TRY(const std::string text, read_text(ref, 4096));
        commit = trimmed(text);
        if (!is_commit(commit)) {
            return Error{
                ErrorKind::invalid,
                fmt::format("The hub cache entry {} names no commit; download the model again with: {}",
                            quote(ref.native()), command)};
        }
    }
    const fs::path snapshot = repo / "snapshots" / commit;
    if (is_word(commit) && fs::is_directory(snapshot, error)) return snapshot;

    const auto present = snapshots_in(repo);
    if (!present.empty()) {
        return Error{
            ErrorKind::not_found,
            fmt::format(
                "The hub cache has {} only at revision {}, not at {}; name it {}@{}, or download with: {}",
                name, present.front(), quote(wanted), name, present.front(), command)};
    }
    return Error{ErrorKind::not_found,
                 fmt::format("The hub cache {} holds nothing of {} yet; download it with: {}",
                             quote(cache.native()), name, command)};
}

}  // namespace

bool is_repo_name(std::string_view text) {
    const auto slash = text.find('/');
    return slash != std::string_view::npos && is_word(text.substr(0, slash)) &&
           is_word(text.substr(slash + 1));
}

std::optional<fs::path> hub_cache_dir() {
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
        if (const std::string value = environment(name); !value.empty()) return expand_home(value);
    }
    if (const std::string home = environment("HF_HOME"); !home.empty()) return expand_home(home + "/hub");
    if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty())
        return expand_home(cache + "/huggingface/hub");
    return expand_home("~/.cache/huggingface/hub");
}

Result<fs::path> locate_model(std::string_view spec) {
    if (spec.empty()) {
        return Error{ErrorKind::usage,
                     "The name of the model is empty; give a directory, a .safetensors file or org/name."};
    }
    if (spec.find('\0') != std::string_view::npos) {
        return Error{ErrorKind::usage, fmt::format("The model name {} holds a NUL byte.", quote(spec))};
    }
    std::error_code error;
    const fs::path path(spec);
    if (fs::exists(path, error)) return path;
    if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory) {
        return Error{ErrorKind::io,
                     fmt::format("The model {} cannot be looked at: {}.", quote(spec), error.message())};
    }

    const auto at = spec.find('@');
    const std::string_view name = spec.substr(0, at);
    const std::string_view revision = at == std::string_view::npos ? std::string_view() : spec.substr(at + 1);
    if (!is_repo_name(name)) {
        return Error{
            ErrorKind::not_found,
            fmt::format(
                "There is no model {}: no such file or directory, and a name in the hub cache has the "
                "form org/name.",
                quote(spec))};
    }
    if (at != std::string_view::npos && !is_revision(revision)) {
        return Error{ErrorKind::usage,
                     fmt::format("The model name {} has a revision that is no branch, tag or commit; "
                                 "write org/name@revision.",
                                 quote(spec))};
    }
    return locate_in_hub(name, revision);
}

std::optional<HubSnapshot> hub_snapshot(const fs::path& directory) {
    std::error_code error;
    const fs::path snapshot = fs::absolute(directory, error).lexically_normal();
    if (error) return std::nullopt;
    const fs::path named = snapshot.has_filename() ? snapshot : snapshot.parent_path();
    const fs::path repo = named.parent_path().parent_path();
    const std::string folder = repo.filename().native();
    constexpr std::string_view prefix = "models--";
    if (named.parent_path().filename() != "snapshots" || folder.rfind(prefix, 0) != 0) return std::nullopt;
    const std::string_view joined = std::string_view(folder).substr(prefix.size());
    const auto split = joined.find("--");
    if (split == std::string_view::npos) return std::nullopt;
    const std::string name = fmt::format("{}/{}", joined.substr(0, split), joined.substr(split + 2));
    if (!is_repo_name(name)) return std::nullopt;

    HubSnapshot out{name, named.filename().native()};
    if (const auto main = read_text(repo / "refs/main", 4096); main && trimmed(*main) == out.revision)
        out.revision.clear();
    return out;
}

std::string download_command(const fs::path& directory, std::string_view file, std::string_view repo_hint) {
    const auto snapshot = hub_snapshot(directory);
    std::string out = "hf download ";
    if (snapshot) {
        out += snapshot->repo;
    } else {
        out += is_repo_name(repo_hint) ? repo_hint : "ORG/NAME";
    }
    if (!file.empty()) out += fmt::format(" {}", shell_word(std::string(file)));
    if (!snapshot) {
        out += fmt::format(" --local-dir {}", shell_word(directory.native()));
    } else if (!snapshot->revision.empty()) {
        out += fmt::format(" --revision {}", shell_word(snapshot->revision));
    }
    return out;
}

}  // namespace dgemma::files
