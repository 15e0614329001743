#include "files/pack.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files/checkpoint.h"
#include "files/pack_writer.h"
#include "support/scratch.h"

namespace dgemma::files {
namespace {

namespace fs = std::filesystem;
using testing::ScratchDir;

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

// Any numbers, different for every tensor.
class Numbers : public RowSource {
  public:
    Numbers(std::uint32_t key, std::int64_t cols) : key_(key), cols_(cols) {}
    void read(std::int64_t row, float* out) const override {
        quantize_baseline.noise(key_, static_cast<std::uint32_t>(row), cols_, 0.02f, out);
    }

  private:
    std::uint32_t key_;
    std::int64_t cols_;
};

// One tensor of each form.
std::vector<PackItem> items() {
    return {
        {"norm", "norms", "", {{96}, Encoding::plain, Layout::rows, Dtype::f32}},
        {"embedding", "embedding", "", {{70, 96}, Encoding::plain, Layout::rows, Dtype::bf16}},
        {"bank", "experts", "", {{3, 40, 64}, Encoding::affine4, Layout::tiles}},
        {"attention", "attn", "", {{33, 96}, Encoding::affine8, Layout::tiles}},
        {"dense", "dense", "a reason", {{33, 96}, Encoding::plain, Layout::tiles}},
        {"rows8", "dense", "", {{33, 96}, Encoding::fp8_row, Layout::rows}},
        {"rows4", "experts", "", {{3, 33, 96}, Encoding::nvfp4, Layout::rows}},
        {"scalar", "scalars", "", {{1}, Encoding::plain, Layout::rows, Dtype::bf16}},
    };
}

PackManifest about() {
    PackManifest out;
    out.creator = "dgemma test";
    out.source = "org/name";
    out.profile = "q4";
    out.formats = {{"experts", "q4"}, {"embedding", "as stored"}};
    return out;
}

Status write_pack(const fs::path& target, bool force = false, const LongRun& run = {}) {
    DGEMMA_TRY(auto writer, PackWriter::create(target, force, PackWriter::blob_bytes_of(items())));
    ThreadPool pool(2);
    std::uint32_t key = 1;
    for (const PackItem& item : items())
        DGEMMA_CHECK(writer->add(item, Numbers(key++, item.form.shape.back()), pool, run));
    DGEMMA_CHECK(writer->add_file("config.json", "{\"a\":1}"));
    DGEMMA_CHECK(writer->add_file("empty.txt", ""));
    EXPECT_EQ(writer->blob_bytes(), PackWriter::blob_bytes_of(items()));
    return writer->commit(about());
}

std::string read_file(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
}

std::vector<std::string> names_in(const fs::path& directory) {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(directory)) out.push_back(entry.path().filename());
    std::sort(out.begin(), out.end());
    return out;
}

std::vector<float> decode(const WeightView& view) {
    std::vector<float> out(static_cast<std::size_t>(view.elements()));
    decode_rows(view, 0, view.elements() / view.shape.back(), out.data(), view.shape.back());
    return out;
}

TEST(Pack, HoldsWhatWasPutIn) {
    const ScratchDir scratch;
    const fs::path target = scratch.path() / "model";
    const Status written = write_pack(target);
    ASSERT_TRUE(written) << written.error().message;
    EXPECT_EQ(names_in(scratch.path()), (std::vector<std::string>{"model"}));
    EXPECT_EQ(names_in(target),
              (std::vector<std::string>{"config.json", "dgemma-pack.json", "empty.txt", "weights.bin"}));

    for (const fs::path& path : {target, target / "dgemma-pack.json"}) {
        const auto opened = Checkpoint::open(path);
        ASSERT_TRUE(opened) << opened.error().message;
        EXPECT_TRUE(opened->is_pack());
        EXPECT_EQ(opened->path(), target);
        EXPECT_EQ(opened->names().size(), items().size());
        EXPECT_EQ(*opened->config_text(), "{\"a\":1}");
        EXPECT_TRUE(check_plain_storage(*opened));
    }
    const Checkpoint checkpoint = std::move(Checkpoint::open(target)).value();
    ThreadPool pool(1);
    std::uint32_t key = 1;
    for (const PackItem& item : items()) {
        const auto weight = checkpoint.weight(item.name);
        ASSERT_TRUE(weight) << item.name;
        const auto expected =
            encode_weight(item.name, item.form, Numbers(key++, item.form.shape.back()), pool);
        ASSERT_TRUE(expected);
        EXPECT_EQ(weight->shape, item.form.shape);
        EXPECT_EQ(weight->encoding, item.form.encoding);
        EXPECT_EQ(weight->layout, item.form.layout);
        EXPECT_EQ(weight->type, item.form.type);
        EXPECT_EQ(decode(*weight), decode(expected->view)) << item.name;
        for (const std::byte* part : {weight->codes, weight->scales, weight->biases, weight->globals})
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(part) % 64, 0u) << item.name;
        // Only plain rows are tensors.
        const bool plain_rows = item.form.encoding == Encoding::plain && item.form.layout == Layout::rows;
        EXPECT_EQ(checkpoint.find(item.name) != nullptr, plain_rows) << item.name;
    }
    EXPECT_FALSE(checkpoint.weight("nothing"));
    const PackManifest& manifest = checkpoint.pack()->manifest();
    EXPECT_EQ(manifest.creator, "dgemma test");
    EXPECT_EQ(manifest.source, "org/name");
    EXPECT_EQ(manifest.profile, "q4");
    EXPECT_EQ(manifest.formats.at("experts"), "q4");
    EXPECT_EQ(manifest.tensors[2].group, "experts");
    EXPECT_EQ(manifest.tensors[4].kept, "a reason");
    std::uint64_t bytes = 0;
    const LongRun run{[&](std::uint64_t more) { bytes += more; }, nullptr};
    EXPECT_TRUE(checkpoint.pack()->verify(pool, run));
    EXPECT_GT(bytes, 0u);
}

TEST(Pack, IsTheSameEveryTime) {
    const ScratchDir scratch;
    ASSERT_TRUE(write_pack(scratch.path() / "a"));
    ASSERT_TRUE(write_pack(scratch.path() / "b"));
    for (const char* name : {"dgemma-pack.json", "weights.bin"})
        EXPECT_EQ(read_file(scratch.path() / "a" / name), read_file(scratch.path() / "b" / name)) << name;
    const auto manifest = parse_manifest(read_file(scratch.path() / "a/dgemma-pack.json"), "m");
    ASSERT_TRUE(manifest);
    EXPECT_EQ(write_manifest(*manifest), read_file(scratch.path() / "a/dgemma-pack.json"));
}

TEST(Pack, PlainSafetensorsAreWeightsToo) {
    const ScratchDir scratch;
    scratch.write("model.safetensors",
                  testing::safetensors_of({{"a", {"BF16", {2, 3}}}, {"b", {"F32", {4}}}}));
    const auto checkpoint = Checkpoint::open(scratch.path());
    ASSERT_TRUE(checkpoint);
    EXPECT_FALSE(checkpoint->is_pack());
    EXPECT_EQ(checkpoint->pack(), nullptr);
    const auto a = checkpoint->weight("a");
    ASSERT_TRUE(a);
    EXPECT_EQ(a->shape, (Shape{2, 3}));
    EXPECT_EQ(a->encoding, Encoding::plain);
    EXPECT_EQ(a->type, Dtype::bf16);
    EXPECT_EQ(a->codes, checkpoint->find("a")->data);
    EXPECT_FALSE(checkpoint->weight("c"));
    // Safetensors beside a manifest do not count.
    ASSERT_TRUE(write_pack(scratch.path() / "pack"));
    fs::copy(scratch.path() / "model.safetensors", scratch.path() / "pack");
    const auto pack = Checkpoint::open(scratch.path() / "pack");
    ASSERT_TRUE(pack);
    EXPECT_TRUE(pack->is_pack());
    EXPECT_EQ(pack->ignored_files(), (std::vector<std::string>{"model.safetensors"}));
}

// --- damage

class DamagedPack : public ::testing::Test {
  protected:
    void SetUp() override {
        ASSERT_TRUE(write_pack(target));
        manifest = read_file(target / "dgemma-pack.json");
    }
    // The message with which a manifest is refused in which `from` is replaced by `to` once.
    std::string with(const std::string& from, const std::string& to, ErrorKind kind = ErrorKind::invalid) {
        std::string text = manifest;
        const std::size_t at = text.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        if (at != std::string::npos) text.replace(at, from.size(), to);
        std::ofstream(target / "dgemma-pack.json", std::ios::binary) << text;
        const auto opened = Checkpoint::open(target);
        if (opened) return "accepted";
        EXPECT_EQ(opened.error().kind, kind) << opened.error().message;
        return opened.error().message;
    }

    ScratchDir scratch;
    fs::path target = scratch.path() / "model";
    std::string manifest;
};

TEST_F(DamagedPack, ANewerVersionIsRefusedAsSuch) {
    const std::string message = with("\"version\":1", "\"version\":2", ErrorKind::unsupported);
    EXPECT_SAYS(message, "version 2");
    EXPECT_SAYS(message, "newer dgemma");
    // Whatever else a newer one changes.
    std::ofstream(target / "dgemma-pack.json") << R"({"format":"dgemma-pack","version":7})";
    EXPECT_EQ(Checkpoint::open(target).error().kind, ErrorKind::unsupported);
    EXPECT_SAYS(with("\"version\":1", "\"version\":0"), "the first one is 1");
    EXPECT_SAYS(with("\"version\":1", "\"version\":-1"), "\"version\"");
    EXPECT_SAYS(with("\"version\":1", "\"version\":\"1\""), "\"version\"");
    EXPECT_SAYS(with("\"format\":\"dgemma-pack\"", "\"format\":\"else\""), "its format is \"else\"");
}

TEST_F(DamagedPack, AManifestThatDoesNotAddUpIsRefused) {
    EXPECT_SAYS(with("\"tensors\"", "\"tensor\""), "no \"tensors\"");
    EXPECT_SAYS(with("\"shape\":[3,40,64]", "\"shape\":[3,40,32]"), "where shape and encoding need");
    EXPECT_SAYS(with("\"shape\":[3,40,64]", "\"shape\":[3,40,65]"), "cannot be affine4 in tiles");
    EXPECT_SAYS(with("\"shape\":[3,40,64]", "\"shape\":[3,-40,64]"), "no list of up to");
    EXPECT_SAYS(with("\"shape\":[3,40,64]", "\"shape\":[3,40,4611686018427387904]"), "cannot be");
    EXPECT_SAYS(with("\"shape\":[3,40,64]", "\"shape\":[1,1,1,1,1,1,3,40,64]"), "no list of up to");
    EXPECT_SAYS(with("\"shape\":[3,40,64]", "\"shape\":{}"), "no list");
    EXPECT_SAYS(with("\"affine4\"", "\"affine3\""), "unknown encoding \"affine3\"");
    EXPECT_SAYS(with("\"affine4\"", "\"affine8\""), "where shape and encoding need");
    EXPECT_SAYS(with("\"layout\":\"tiles\"", "\"layout\":\"rows\""), "where shape and encoding need");
    EXPECT_SAYS(with("\"dtype\":\"f32\"", "\"dtype\":\"i32\""), "unknown dtype");
    EXPECT_SAYS(with("\"name\":\"bank\"", "\"name\":\"norm\""), "twice");
    EXPECT_SAYS(with("\"file\":\"weights.bin\"", "\"file\":\"../weights.bin\""), "blob is named");
    EXPECT_SAYS(with("\"config.json\"", "\"../config.json\""), "no file beside it");
    EXPECT_SAYS(with("\"biases\"", "\"bases\""), "the biases of tensor \"bank\" are missing");
    EXPECT_SAYS(with("\"creator\":\"dgemma test\"", "\"creator\":\"dgemma tset\""), "checksum");
    EXPECT_SAYS(with("\"class\":\"experts\"", "\"class\":\"dense\""), "checksum");
    EXPECT_SAYS(with("\"kept\":\"a", "\"kept\":\"A"), "checksum");
    EXPECT_SAYS(with("{", ""), "no JSON");
    EXPECT_SAYS(with(manifest, "[]"), "no JSON object");
    EXPECT_SAYS(with(manifest, std::string(100000, '[')), "no JSON");
}

TEST_F(DamagedPack, PartsStayInsideAlignedAndApart) {
    const auto parsed = parse_manifest(manifest, "m");
    ASSERT_TRUE(parsed);
    const auto refusal = [&](const auto& change) {
        PackManifest changed = *parsed;
        change(changed);
        const auto result = parse_manifest(write_manifest(changed), "m");
        return result ? std::string("accepted") : result.error().message;
    };
    EXPECT_SAYS(refusal([](PackManifest& m) { m.tensors[2].codes.offset += 4; }), "multiple of 64");
    EXPECT_SAYS(refusal([](PackManifest& m) { m.tensors[2].codes.offset = m.blob_bytes / 64 * 64; }),
                "end beyond");
    EXPECT_SAYS(refusal([](PackManifest& m) { m.tensors[2].codes.offset = ~std::uint64_t{63}; }),
                "end beyond");
    EXPECT_SAYS(refusal([](PackManifest& m) { m.tensors[2].codes.offset = m.tensors[3].codes.offset; }),
                "share bytes");
    EXPECT_SAYS(refusal([](PackManifest& m) { m.tensors[2].scales.offset = m.tensors[2].biases.offset; }),
                "share bytes");
    EXPECT_SAYS(refusal([](PackManifest& m) { m.tensors[2].codes.bytes -= 64; }),
                "where shape and encoding need");
    EXPECT_SAYS(refusal([](PackManifest& m) { m.tensors[2].codes.sha256 = "00"; }), "sha256");
    EXPECT_SAYS(refusal([](PackManifest& m) { m.blob_bytes -= 1; }), "end beyond");
    EXPECT_SAYS(refusal([](PackManifest& m) { m.tensors.clear(); }), "no tensors");
    EXPECT_EQ(refusal([](PackManifest& m) { m.source = "\"\n\xff"; }), "accepted");
}

TEST_F(DamagedPack, TheBlobHasTheSizeThatTheManifestSays) {
    const auto size = fs::file_size(target / "weights.bin");
    fs::resize_file(target / "weights.bin", size - 1);
    EXPECT_SAYS(Checkpoint::open(target).error().message, "cut short");
    fs::resize_file(target / "weights.bin", size + 1);
    EXPECT_SAYS(Checkpoint::open(target).error().message, "another pack");
    fs::remove(target / "weights.bin");
    EXPECT_EQ(Checkpoint::open(target).error().kind, ErrorKind::not_found);
    EXPECT_SAYS(Checkpoint::open(target).error().message, "copy the whole directory");
    std::ofstream(target / "weights.bin").close();
    EXPECT_FALSE(Checkpoint::open(target));
}

TEST_F(DamagedPack, VerifyFindsAChangedByteAndNamesItsTensor) {
    const auto parsed = parse_manifest(manifest, "m");
    ASSERT_TRUE(parsed);
    ThreadPool pool(2);
    for (const PackTensor& tensor : parsed->tensors) {
        for (const NamedPart& named : kPackParts) {
            const PackPart& part = tensor.*named.part;
            if (part.bytes == 0) continue;
            const auto at = static_cast<std::streamoff>(part.offset + part.bytes - 1);
            std::fstream blob(target / "weights.bin", std::ios::in | std::ios::out | std::ios::binary);
            blob.seekg(at);
            const auto byte = static_cast<char>(blob.get());
            blob.seekp(at).put(static_cast<char>(byte ^ 1)).flush();
            const auto pack = Pack::open(target);
            ASSERT_TRUE(pack) << "its bytes are not read at once";
            const Status checked = pack->verify(pool, {});
            ASSERT_FALSE(checked) << tensor.name << " " << named.name;
            EXPECT_EQ(checked.error().kind, ErrorKind::invalid);
            EXPECT_SAYS(checked.error().message, "of \"" + tensor.name + "\";");
            blob.seekp(at).put(byte).flush();
        }
    }
    std::ofstream(target / "config.json") << "{\"a\":2}";
    EXPECT_SAYS(Pack::open(target)->verify(pool, {}).error().message, "\"config.json\"");
    std::atomic<bool> stop{true};
    EXPECT_EQ(Pack::open(target)->verify(pool, {{}, &stop}).error().kind, ErrorKind::cancelled);
}

// --- writing

TEST(PackWriter, WhatIsThereAlreadyIsReplacedOnlyWhenAsked) {
    const ScratchDir scratch;
    const fs::path target = scratch.path() / "model";
    ASSERT_TRUE(write_pack(target));
    const auto refused = write_pack(target);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::usage);
    EXPECT_SAYS(refused.error().message, "--force");
    // The old one stays readable to who has it open.
    const auto old = Checkpoint::open(target);
    scratch.write("model/stale.txt", "of the old one");
    const auto replaced = write_pack(target, true);
    ASSERT_TRUE(replaced) << replaced.error().message;
    EXPECT_FALSE(fs::exists(target / "stale.txt"));
    EXPECT_EQ(decode(*old->weight("bank")), decode(*Checkpoint::open(target)->weight("bank")));
    EXPECT_EQ(names_in(scratch.path()), (std::vector<std::string>{"model"}));
    EXPECT_TRUE(write_pack(target.string() + "/", true)) << "a slash at the end means the same";
}

TEST(PackWriter, NothingButAPackIsReplaced) {
    const ScratchDir scratch;
    scratch.write("home/letter.txt", "dear");
    scratch.write("file", "x");
    fs::create_directory_symlink(scratch.path() / "home", scratch.path() / "link");
    for (const char* name : {"home", "file", "link"}) {
        for (const bool force : {false, true}) {
            const auto refused = write_pack(scratch.path() / name, force);
            ASSERT_FALSE(refused) << name;
            EXPECT_EQ(refused.error().kind, ErrorKind::usage);
        }
    }
    EXPECT_EQ(read_file(scratch.path() / "home/letter.txt"), "dear");
    EXPECT_EQ(names_in(scratch.path()), (std::vector<std::string>{"file", "home", "link"}));
    for (const char* name : {".", "..", "/"}) EXPECT_FALSE(PackWriter::create(name, true, 0)) << name;
    fs::create_directory(scratch.path() / "empty");
    EXPECT_FALSE(write_pack(scratch.path() / "empty"));
    EXPECT_TRUE(write_pack(scratch.path() / "empty", true));
}

TEST(PackWriter, SaysBeforeAnyWorkWhatCannotBe) {
    const ScratchDir scratch;
    const auto no_parent = write_pack(scratch.path() / "no/model");
    ASSERT_FALSE(no_parent);
    EXPECT_EQ(no_parent.error().kind, ErrorKind::not_found);
    const auto no_room = PackWriter::create(scratch.path() / "model", false, std::uint64_t{1} << 60);
    ASSERT_FALSE(no_room);
    EXPECT_EQ(no_room.error().kind, ErrorKind::io);
    EXPECT_SAYS(no_room.error().message, "free; make room");
    EXPECT_TRUE(names_in(scratch.path()).empty());
}

TEST(PackWriter, AFailureLeavesNothing) {
    const ScratchDir scratch;
    const fs::path target = scratch.path() / "model";
    ThreadPool pool(1);
    {
        auto writer = PackWriter::create(target, false, 0);
        ASSERT_TRUE(writer);
        const std::vector<float> bad(64, std::nanf(""));
        const StoredRows rows(
            WeightView::of({reinterpret_cast<const std::byte*>(bad.data()), Dtype::f32, {2, 32}}));
        const auto added = (*writer)->add(
            {"broken.weight", "attn", "", {{2, 32}, Encoding::affine8, Layout::tiles}}, rows, pool, {});
        ASSERT_FALSE(added);
        EXPECT_SAYS(added.error().message, "\"broken.weight\" holds a NaN");
        EXPECT_EQ(names_in(scratch.path()).size(), 1u);  // aside
    }
    EXPECT_TRUE(names_in(scratch.path()).empty());
    {
        auto writer = PackWriter::create(target, false, 0);
        ASSERT_TRUE(writer);
        const PackItem item = items()[1];
        ASSERT_TRUE((*writer)->add(item, Numbers(1, 96), pool, {}));
        EXPECT_FALSE((*writer)->add(item, Numbers(1, 96), pool, {})) << "twice";
        EXPECT_FALSE((*writer)->add_file("../config.json", ""));
        EXPECT_FALSE((*writer)->add_file("weights.bin", ""));
        // Not committed.
    }
    EXPECT_TRUE(names_in(scratch.path()).empty());
    std::atomic<bool> stop{true};
    EXPECT_EQ(write_pack(target, false, {{}, &stop}).error().kind, ErrorKind::cancelled);
    EXPECT_TRUE(names_in(scratch.path()).empty());
}

// Runs f in a process of its own and returns its exit code, or minus the signal that ended it.
template <class F>
int in_child(F f) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(f());
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(PackWriter, AFullDiskIsASentenceAndLeavesNothing) {
    const ScratchDir scratch;
    const fs::path target = scratch.path() / "model";
    const int code = in_child([&] {
        // A limit on the size of files is the one kind of full disk that a test can make.
        const rlimit limit{4096, 4096};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        std::signal(SIGXFSZ, SIG_IGN);
        const auto result = write_pack(target);
        if (result) return 1;
        if (result.error().kind != ErrorKind::io) return 2;
        return result.error().message.find("weights.bin\" would be larger") != std::string::npos ? 0 : 3;
    });
    EXPECT_EQ(code, 0);
    EXPECT_TRUE(names_in(scratch.path()).empty());
}

TEST(PackWriter, KilledItLeavesTheOldPackAndTheNextOneClearsUp) {
    const ScratchDir scratch;
    const fs::path target = scratch.path() / "model";
    ASSERT_TRUE(write_pack(target));
    const std::string before = read_file(target / "dgemma-pack.json");
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        int pieces = 0;
        const LongRun run{[&](std::uint64_t) {
                              if (++pieces < 4) return;
                              const char ready = 1;
                              if (::write(ends[1], &ready, 1) == 1) ::pause();
                          },
                          nullptr};
        ::_exit(write_pack(target, true, run) ? 0 : 1);
    }
    char ready = 0;
    ASSERT_EQ(::read(ends[0], &ready, 1), 1);
    EXPECT_EQ(names_in(scratch.path()).size(), 2u);
    // While it lives, another writer leaves its work alone.
    ASSERT_TRUE(write_pack(scratch.path() / "model", true));
    EXPECT_EQ(names_in(scratch.path()).size(), 2u);
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    ::close(ends[0]);
    ::close(ends[1]);

    EXPECT_EQ(read_file(target / "dgemma-pack.json"), before);
    ThreadPool pool(1);
    EXPECT_TRUE(Pack::open(target)->verify(pool, {}));
    EXPECT_EQ(names_in(scratch.path()).size(), 2u);
    ASSERT_TRUE(write_pack(target, true));
    EXPECT_EQ(names_in(scratch.path()), (std::vector<std::string>{"model"}));
}

}  // namespace
}  // namespace dgemma::files
