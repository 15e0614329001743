#include "files/pack.h"

#include <algorithm>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/quote.h"
#include "base/sha256.h"

namespace dgemma::files {

namespace fs = std::filesystem;

namespace {

std::string hex(const std::array<std::uint8_t, 32>& digest) {
    std::string out;
    for (const std::uint8_t byte : digest) out += fmt::format("{:02x}", byte);
    return out;
}

constexpr std::size_t piece_bytes = std::size_t{8} << 20;  // hashed between two looks at the clock

// The first few names and how many more.
std::string some_of(std::vector<std::string> names) {
    constexpr std::size_t most = 5;
    std::sort(names.begin(), names.end());
    const std::size_t shown = std::min(names.size(), most);
    std::string out =
        fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
    if (names.size() > shown) out += fmt::format(" and {} more", names.size() - shown);
    return out;
}

}  // namespace

bool is_pack(const fs::path& directory) { return is_there(directory / kPackManifestName); }

Result<Pack> Pack::open(const fs::path& directory) {
    const fs::path path = directory / kPackManifestName;
    DGEMMA_TRY(const std::string text, read_text(path));
    Pack out;
    out.directory_ = directory;
    DGEMMA_TRY(out.manifest_, parse_manifest(text, path.native()));

    const fs::path blob = out.blob_path();
    auto mapping = Mapping::open(blob);
    if (!mapping) {
        if (mapping.error().kind != ErrorKind::not_found) return std::move(mapping).error();
        return Error{ErrorKind::not_found,
                     fmt::format("The pack {} has no {} beside its manifest; copy the whole directory.",
                                 quote(directory.native()), quote(kPackBlobName))};
    }
    out.blob_ = std::move(mapping).value();
    if (out.blob_.bytes().size() != out.manifest_.blob_bytes) {
        const bool cut = out.blob_.bytes().size() < out.manifest_.blob_bytes;
        return Error{
            ErrorKind::invalid,
            fmt::format("The weights {} have {} bytes and their manifest says {} ({}); copy the pack "
                        "again or make it anew with dgemma quantize.",
                        quote(blob.native()), out.blob_.bytes().size(), out.manifest_.blob_bytes,
                        cut ? "they were cut short" : "they belong to another pack")};
    }
    for (std::size_t i = 0; i < out.manifest_.tensors.size(); ++i)
        out.index_.emplace(out.manifest_.tensors[i].name, i);
    return out;
}

WeightView Pack::view_of(const PackTensor& tensor) const {
    const auto at = [&](const PackPart& part) {
        return part.bytes == 0 ? nullptr : blob_.bytes().data() + part.offset;
    };
    return {.shape = tensor.shape,
            .encoding = tensor.encoding,
            .layout = tensor.layout,
            .type = tensor.type,
            .codes = at(tensor.codes),
            .scales = at(tensor.scales),
            .biases = at(tensor.biases),
            .globals = at(tensor.globals)};
}

std::optional<WeightView> Pack::weight(std::string_view name) const {
    const auto found = index_.find(name);
    if (found == index_.end()) return std::nullopt;
    return view_of(manifest_.tensors[found->second]);
}

Status Pack::verify(ThreadPool& pool, const LongRun& run) const {
    std::vector<std::string> differing;
    for (const auto& [name, file] : manifest_.files) {
        std::error_code error;
        const bool empty = fs::file_size(directory_ / name, error) == 0 && !error;
        const auto text = empty ? Result<std::string>(std::string()) : read_text(directory_ / name);
        if (!text || text->size() != file.bytes || sha256_hex(*text) != file.sha256)
            differing.push_back(quote(name));
    }
    std::vector<std::pair<const PackTensor*, const PackPart*>> parts;
    for (const PackTensor& tensor : manifest_.tensors) {
        for (const NamedPart& named : kPackParts) {
            if ((tensor.*named.part).bytes != 0) parts.emplace_back(&tensor, &(tensor.*named.part));
        }
    }
    // The largest first, so that the threads end together.
    std::stable_sort(parts.begin(), parts.end(),
                     [](const auto& a, const auto& b) { return a.second->bytes > b.second->bytes; });
    std::mutex mutex;
    pool.parallel_for(static_cast<std::int64_t>(parts.size()), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const auto& [tensor, part] = parts[static_cast<std::size_t>(i)];
            auto bytes = blob_.bytes().subspan(part->offset, part->bytes);
            Sha256 hash;
            while (!bytes.empty() && !run.stopped()) {
                const auto piece = bytes.first(std::min(bytes.size(), piece_bytes));
                hash.update({reinterpret_cast<const char*>(piece.data()), piece.size()});
                release_pages(piece);
                run.advance(piece.size());
                bytes = bytes.subspan(piece.size());
            }
            if (run.stopped()) return;
            if (hex(hash.digest()) == part->sha256) continue;
            const std::lock_guard lock(mutex);
            const std::string name = quote(tensor->name);
            if (std::find(differing.begin(), differing.end(), name) == differing.end())
                differing.push_back(name);
        }
    });
    if (run.stopped()) return Error{ErrorKind::cancelled, "The check was stopped."};
    if (differing.empty()) return {};
    return Error{
        ErrorKind::invalid,
        fmt::format("The pack {} is damaged: its bytes do not fit the checksums of {}; copy it again "
                    "or make it anew with dgemma quantize.",
                    quote(directory_.native()), some_of(std::move(differing)))};
}

}  // namespace dgemma::files
