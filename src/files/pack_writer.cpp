#include "files/pack_writer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/quote.h"
#include "files/shard_names.h"

namespace dgemma::files {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t piece_bytes = std::uint64_t{16} << 20;
constexpr std::size_t most_on_the_way = std::size_t{256} << 20;  // written, and perhaps not on the disk yet
constexpr std::size_t pieces_waiting = 1;  // one more is being written, and one is being encoded
constexpr std::string_view aside_mark = ".partial-";

std::string hex(const std::array<std::uint8_t, 32>& digest) {
    std::string out;
    for (const std::uint8_t byte : digest) out += fmt::format("{:02x}", byte);
    return out;
}

constexpr std::uint64_t aligned(std::uint64_t offset) {
    return (offset + kPackAlignment - 1) / kPackAlignment * kPackAlignment;
}

Error cannot_write(const fs::path& path, int code) {
    const std::string name = quote(path.native());
    if (code == ENOSPC || code == EDQUOT) {
        return {ErrorKind::io, fmt::format("The disk is full, so {} cannot be written; make room or give "
                                           "another place with -o.",
                                           name)};
    }
    if (code == EFBIG) {
        return {ErrorKind::io, fmt::format("The file {} would be larger than the file system or the limit on "
                                           "file sizes (ulimit -f) allows; give another place with -o.",
                                           name)};
    }
    if (code == EACCES || code == EPERM || code == EROFS) {
        return {ErrorKind::io,
                fmt::format("There is no permission to write {}; give another place with -o.", name)};
    }
    return {ErrorKind::io,
            fmt::format("The file {} cannot be written: {}.", name, std::generic_category().message(code))};
}

Status write_at(int file, const fs::path& path, const std::byte* bytes, std::size_t count,
                std::uint64_t offset) {
    while (count > 0) {
        const ssize_t written = ::pwrite(file, bytes, count, static_cast<off_t>(offset));
        if (written < 0) {
            if (errno == EINTR) continue;
            return cannot_write(path, errno);
        }
        bytes += written;
        count -= static_cast<std::size_t>(written);
        offset += static_cast<std::uint64_t>(written);
    }
    return {};
}

struct Descriptor {
    int fd = -1;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
};

Status write_file(const fs::path& path, std::string_view text) {
    const Descriptor file{::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
    if (file.fd < 0) return cannot_write(path, errno);
    DGEMMA_CHECK(write_at(file.fd, path, reinterpret_cast<const std::byte*>(text.data()), text.size(), 0));
    if (::fsync(file.fd) != 0) return cannot_write(path, errno);
    return {};
}

// The names of a directory are on the disk.
void sync_directory(const fs::path& path) {
    const Descriptor directory{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (directory.fd >= 0) ::fsync(directory.fd);
}

// "path/to/dir/" and "path/to/dir" are the same target.
fs::path without_slash(fs::path path) {
    if (!path.has_filename()) path = path.parent_path();
    return path;
}

fs::path parent_of(const fs::path& path) {
    return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// What writers that were killed left beside the target. A living one holds a lock on its blob.
void remove_leftovers(const fs::path& target) {
    const std::string start = target.filename().native() + std::string(aside_mark);
    std::error_code error;
    for (fs::directory_iterator entry(parent_of(target), error), end; !error && entry != end;
         entry.increment(error)) {
        if (entry->path().filename().native().rfind(start, 0) != 0) continue;
        const Descriptor blob{::open((entry->path() / kPackBlobName).c_str(), O_RDWR | O_CLOEXEC)};
        if (blob.fd < 0 || ::flock(blob.fd, LOCK_EX | LOCK_NB) != 0) continue;
        std::error_code ignored;
        fs::remove_all(entry->path(), ignored);
    }
}

Status check_target(const fs::path& target, bool force) {
    std::error_code error;
    const auto status = fs::symlink_status(target, error);
    if (status.type() == fs::file_type::not_found) return {};
    if (error) return cannot_write(target, error.value());
    if (!force) {
        return Error{ErrorKind::usage,
                     fmt::format("{} is there already; give another -o, or --force to replace it.",
                                 quote(target.native()))};
    }
    if (!fs::is_directory(status) || (!is_pack(target) && !fs::is_empty(target, error))) {
        return Error{ErrorKind::usage,
                     fmt::format("{} is no pack, and --force replaces nothing else; give another -o.",
                                 quote(target.native()))};
    }
    return {};
}

Status check_room(const fs::path& parent, std::uint64_t needed) {
    struct statvfs info {};
    if (::statvfs(parent.c_str(), &info) != 0) return {};  // then the writes will tell
    if (info.f_blocks == 0) return {};                     // a file system that does not count
    const std::uint64_t free = std::uint64_t{info.f_bavail} * info.f_frsize;
    if (free >= needed) return {};
    const bool small = needed < 1'000'000'000;
    const double unit = small ? 1e6 : 1e9;
    const char* const name = small ? "MB" : "GB";
    return Error{
        ErrorKind::io,
        fmt::format("The pack needs {:.1f} {} and the disk of {} has {:.1f} {} free; make room or give "
                    "another place with -o.",
                    static_cast<double>(needed) / unit, name, quote(parent.native()),
                    static_cast<double>(free) / unit, name)};
}

}  // namespace

Result<std::unique_ptr<PackWriter>> PackWriter::create(const fs::path& target, bool force,
                                                       std::uint64_t needed_bytes) {
    std::unique_ptr<PackWriter> out(new PackWriter());
    out->target_ = without_slash(target);
    out->force_ = force;
    const std::string name = out->target_.filename().native();
    if (name.empty() || name == "." || name == "..") {
        return Error{ErrorKind::usage,
                     fmt::format("{} cannot be the name of a pack; give -o a directory that "
                                 "is to be made.",
                                 quote(target.native()))};
    }
    const fs::path parent = parent_of(out->target_);
    DGEMMA_CHECK(check_target(out->target_, force));
    std::error_code error;
    if (!fs::is_directory(parent, error)) {
        return Error{ErrorKind::not_found,
                     fmt::format("There is no directory {} to write a pack in; make it or "
                                 "give another -o.",
                                 quote(parent.native()))};
    }
    remove_leftovers(out->target_);
    DGEMMA_CHECK(check_room(parent, needed_bytes));

    const fs::path aside = parent / fmt::format("{}{}{}", name, aside_mark, ::getpid());
    fs::create_directory(aside, error);
    if (error) return cannot_write(aside, error.value());
    out->aside_ = aside;
    const fs::path blob = aside / kPackBlobName;
    out->blob_ = ::open(blob.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (out->blob_ < 0) return cannot_write(blob, errno);
    ::flock(out->blob_, LOCK_EX | LOCK_NB);
    try {
        out->thread_ = std::thread([writer = out.get()] { writer->write_pieces(); });
    } catch (const std::system_error&) {
        return Error{ErrorKind::io,
                     "No thread can be made to write the pack with; end other programs or raise "
                     "the limit on processes (ulimit -u)."};
    }
    return out;
}

PackWriter::~PackWriter() {
    if (thread_.joinable()) {
        {
            const std::lock_guard lock(mutex_);
            ending_ = true;
            waiting_.clear();
        }
        changed_.notify_all();
        thread_.join();
    }
    if (blob_ >= 0) ::close(blob_);
    if (!committed_ && !aside_.empty()) {
        std::error_code ignored;
        fs::remove_all(aside_, ignored);
    }
}

std::uint64_t PackWriter::blob_bytes_of(const std::vector<PackItem>& items) {
    std::uint64_t end = 0;
    for (const PackItem& item : items) {
        const auto grid = weight_grid(item.form.shape, item.form.encoding, item.form.layout, item.form.type);
        const WeightBytes bytes = grid ? grid->total() : WeightBytes{};
        for (const NamedPart& named : kPackParts) {
            if (bytes.*named.bytes != 0) end = aligned(end) + bytes.*named.bytes;
        }
    }
    return end;
}

Status PackWriter::add(const PackItem& item, const RowSource& rows, ThreadPool& pool, const LongRun& run) {
    const bool again = std::any_of(tensors_.begin(), tensors_.end(),
                                   [&](const PackTensor& t) { return t.name == item.name; });
    if (again || !can_encode(item.form)) {
        return Error{
            ErrorKind::usage,
            fmt::format("Tensor {} cannot go into the pack: {}.", quote(item.name),
                        again ? "one of this name is in it"
                              : fmt::format("{} in {} cannot hold its shape {}", name_of(item.form.encoding),
                                            name_of(item.form.layout), to_string(item.form.shape)))};
    }
    WeightEncoder encoder(item.name, item.form, rows);
    PackTensor tensor{
        item.name, item.group, item.form.encoding, item.form.layout, item.form.type, item.form.shape, {}, {},
        {},        {},         item.kept};
    const WeightBytes bytes = encoder.grid().total();
    for (const NamedPart& named : kPackParts) {
        PackPart& part = tensor.*named.part;
        part.bytes = bytes.*named.bytes;
        if (part.bytes == 0) continue;
        part.offset = aligned(end_);
        end_ = part.offset + part.bytes;
    }
    tensors_.push_back(tensor);
    {
        const std::lock_guard lock(mutex_);
        hashes_.emplace_back();
    }

    const WeightBytes tile = encoder.offset(encoder.tiles() > 1 ? 1 : 0);
    const std::uint64_t tile_bytes = std::max<std::uint64_t>(tile.codes + tile.scales + tile.biases, 1);
    const auto at_once = static_cast<std::int64_t>(std::max<std::uint64_t>(piece_bytes / tile_bytes, 1));
    for (std::int64_t first = 0; first < encoder.tiles(); first += at_once) {
        if (run.stopped()) return Error{ErrorKind::cancelled, "Stopped; nothing was written."};
        const std::int64_t last = std::min(first + at_once, encoder.tiles());
        const WeightBytes begin = encoder.offset(first), end = encoder.offset(last);
        Piece piece;
        piece.tensor = tensors_.size() - 1;
        std::array<std::size_t, 3> starts{};
        std::size_t used = 0;
        for (std::size_t p = 0; p < starts.size(); ++p) {
            const auto member = kPackParts[p].bytes;
            starts[p] = used;
            const auto count = static_cast<std::size_t>(end.*member - begin.*member);
            if (count == 0) continue;
            piece.spans.push_back({p, used, count, (tensor.*kPackParts[p].part).offset + begin.*member});
            used += (count + 63) / 64 * 64;
        }
        piece.bytes = take_buffer(used);
        std::byte* to = piece.bytes.data();
        DGEMMA_CHECK(encoder.encode(first, last, {to + starts[0], to + starts[1], to + starts[2]}, pool));
        const std::int64_t first_row = encoder.first_row(first);
        const std::int64_t last_row =
            last < encoder.tiles() ? encoder.first_row(last) : encoder.grid().matrices * encoder.grid().rows;
        rows.release(first_row, last_row);
        DGEMMA_CHECK(submit(std::move(piece)));
        run.advance(static_cast<std::uint64_t>((last_row - first_row) * encoder.grid().cols) * 2);
    }
    if (bytes.globals != 0) {
        Piece piece;
        piece.tensor = tensors_.size() - 1;
        piece.bytes = take_buffer(bytes.globals);
        std::memcpy(piece.bytes.data(), encoder.globals().data(), bytes.globals);
        piece.spans.push_back({3, 0, bytes.globals, tensor.globals.offset});
        DGEMMA_CHECK(submit(std::move(piece)));
    }
    return {};
}

// At least so many bytes.
Buffer PackWriter::take_buffer(std::size_t bytes) {
    {
        const std::lock_guard lock(mutex_);
        while (!spare_.empty()) {
            Buffer buffer = std::move(spare_.back());
            spare_.pop_back();
            if (buffer.size() >= bytes) return buffer;
        }
    }
    return Buffer(std::max<std::size_t>(bytes, piece_bytes));
}

Status PackWriter::submit(Piece piece) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_.size() < pieces_waiting || failure_; });
    if (failure_) return *failure_;
    waiting_.push_back(std::move(piece));
    changed_.notify_all();
    return {};
}

Status PackWriter::drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return (waiting_.empty() && !busy_) || failure_; });
    if (failure_) return *failure_;
    return {};
}

void PackWriter::write_pieces() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
        if (ending_) return;
        Piece piece = std::move(waiting_.front());
        waiting_.pop_front();
        busy_ = true;
        auto hashes = hashes_[piece.tensor];  // a copy: the vector may grow while the lock is off
        changed_.notify_all();
        lock.unlock();
        for (const Piece::Span& span : piece.spans) {
            hashes[span.part].update(
                {reinterpret_cast<const char*>(piece.bytes.data() + span.begin), span.count});
        }
        const Status written = write_piece(piece);
        lock.lock();
        hashes_[piece.tensor] = hashes;
        spare_.push_back(std::move(piece.bytes));
        busy_ = false;
        if (!written && !failure_) failure_ = written.error();
        changed_.notify_all();
    }
}

Status PackWriter::write_piece(const Piece& piece) {
    for (const Piece::Span& span : piece.spans) {
        DGEMMA_CHECK(write_at(blob_, aside_ / kPackBlobName, piece.bytes.data() + span.begin, span.count,
                              span.offset));
        // The disk begins now, and what is too far behind is waited for: else memory fills with what is still
        // to be written, and all of the waiting comes at the end.
        const auto sync = [&](std::uint64_t offset, std::size_t count, unsigned how) {
            ::sync_file_range(blob_, static_cast<off_t>(offset), static_cast<off_t>(count), how);
        };
        sync(span.offset, span.count, SYNC_FILE_RANGE_WRITE);
        on_the_way_.emplace_back(span.offset, span.count);
        on_the_way_bytes_ += span.count;
        while (on_the_way_bytes_ > most_on_the_way) {
            const auto [offset, count] = on_the_way_.front();
            on_the_way_.pop_front();
            on_the_way_bytes_ -= count;
            sync(offset, count,
                 SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
        }
    }
    return {};
}

Status PackWriter::add_file(std::string_view name, std::string_view text) {
    if (!is_plain_file_name(name) || name == kPackBlobName || name == kPackManifestName ||
        !files_.emplace(std::string(name), PackFile{text.size(), sha256_hex(text)}).second) {
        return Error{ErrorKind::usage, fmt::format("A pack cannot hold a file {}.", quote(name))};
    }
    return write_file(aside_ / name, text);
}

Status PackWriter::commit(PackManifest about) {
    DGEMMA_CHECK(drain());
    // What only fills up to a boundary at the end was never written.
    if (::ftruncate(blob_, static_cast<off_t>(end_)) != 0 || ::fsync(blob_) != 0)
        return cannot_write(aside_ / kPackBlobName, errno);
    about.blob_bytes = end_;
    about.tensors = tensors_;
    about.files = files_;
    for (std::size_t i = 0; i < about.tensors.size(); ++i) {
        for (std::size_t p = 0; p < std::size(kPackParts); ++p) {
            PackPart& part = about.tensors[i].*kPackParts[p].part;
            if (part.bytes != 0) part.sha256 = hex(hashes_[i][p].digest());
        }
    }
    DGEMMA_CHECK(write_file(aside_ / kPackManifestName, write_manifest(about)));
    sync_directory(aside_);
    return put_in_place();
}

Status PackWriter::put_in_place() {
    const auto renamed = [&](unsigned flags) {
        return ::renameat2(AT_FDCWD, aside_.c_str(), AT_FDCWD, target_.c_str(), flags) == 0;
    };
    // Asked again: it may have appeared meanwhile.
    DGEMMA_CHECK(check_target(target_, force_));
    std::error_code error;
    const bool there = fs::exists(target_, error);
    if (!there || fs::is_empty(target_, error)) {
        // A directory replaces an empty one in one step too.
        if (std::rename(aside_.c_str(), target_.c_str()) != 0) return cannot_write(target_, errno);
    } else if (renamed(RENAME_EXCHANGE)) {
        fs::remove_all(aside_, error);  // now the old one
    } else {
        // A file system that cannot exchange: for a moment nothing is there.
        fs::path old = aside_;
        old += ".old";
        if (std::rename(target_.c_str(), old.c_str()) != 0) return cannot_write(target_, errno);
        if (std::rename(aside_.c_str(), target_.c_str()) != 0) {
            const int code = errno;
            std::rename(old.c_str(), target_.c_str());
            return cannot_write(target_, code);
        }
        fs::remove_all(old, error);
    }
    committed_ = true;
    sync_directory(parent_of(target_));
    return {};
}

}  // namespace dgemma::files
