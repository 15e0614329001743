#include "cli/write_pack.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "base/thread_pool.h"
#include "cli/interrupt.h"
#include "cli/progress_bar.h"
#include "cli/words.h"
#include "files/pack_writer.h"

namespace dgemma::cli {

namespace {

std::string form_name(const files::PackTensor& tensor) {
    return std::string(tensor.encoding == Encoding::plain ? name_of(tensor.type) : name_of(tensor.encoding));
}

std::uint64_t bytes_of(const files::PackTensor& tensor) {
    std::uint64_t bytes = 0;
    for (const files::NamedPart& named : files::kPackParts) bytes += (tensor.*named.part).bytes;
    return bytes;
}

}  // namespace

int pack_threads(const Arguments& arguments) {
    return arguments.whole_or(Flag::threads, ThreadPool::default_threads());
}

void print_pack(const files::PackManifest& manifest, std::ostream& out) {
    struct Sum {
        std::uint64_t tensors = 0, elements = 0, bytes = 0;
    };
    std::map<std::tuple<std::string, std::string, std::string>, Sum> sums;
    Sum all;
    for (const files::PackTensor& tensor : manifest.tensors) {
        for (Sum* sum :
             {&sums[{tensor.group, form_name(tensor), std::string(name_of(tensor.layout))}], &all}) {
            sum->tensors += 1;
            sum->elements += static_cast<std::uint64_t>(elements_of(tensor.shape));
            sum->bytes += bytes_of(tensor);
        }
    }
    const auto row = [&](std::string_view group, std::string_view form, std::string_view layout,
                         const Sum& sum) {
        out << fmt::format("{:<12}{:<10}{:<8}{:>7}{:>18}{:>12}\n", group, form, layout, sum.tensors,
                           with_commas(sum.elements), bytes_text(sum.bytes));
    };
    out << fmt::format("{:<12}{:<10}{:<8}{:>7}{:>18}{:>12}\n", "class", "format", "layout", "tensors",
                       "numbers", "bytes");
    for (const auto& [key, sum] : sums) row(std::get<0>(key), std::get<1>(key), std::get<2>(key), sum);
    row("all", "", "", all);
    for (const files::PackTensor& tensor : manifest.tensors) {
        if (tensor.kept.empty()) continue;
        out << fmt::format("stays {}: {}, because {}\n", form_name(tensor), tensor.name, tensor.kept);
    }
}

Result<int> write_pack(const PackJob& job, const Arguments& arguments, Console& console) {
    const auto output = arguments.text(Flag::output);
    if (!output) {
        return Error{ErrorKind::usage,
                     "Where is the pack to go? Give a directory that is to be made with "
                     "--output."};
    }
    std::vector<files::PackItem> items;
    std::uint64_t total = 0;
    for (const model::PlannedTensor& planned : job.plan) {
        items.push_back(planned.item);
        total += static_cast<std::uint64_t>(elements_of(planned.item.form.shape)) * 2;
    }
    const InterruptGuard interrupt;
    DGEMMA_TRY(auto writer, files::PackWriter::create(*output, arguments.on(Flag::force),
                                                      files::PackWriter::blob_bytes_of(items)));
    ThreadPool pool(pack_threads(arguments));
    ProgressBar bar(console, job.label, total);
    const files::LongRun run{[&](std::uint64_t bytes) { bar.advance(bytes); }, &interrupt.flag()};
    for (const model::PlannedTensor& planned : job.plan) {
        const auto rows = job.rows(planned);
        const Status added = writer->add(planned.item, *rows, pool, run);
        if (added) continue;
        if (added.error().kind != ErrorKind::cancelled) return added.error();
        writer.reset();
        bar.stop();
        console.err << "dgemma: stopped; nothing was written.\n";
        return interrupt.exit_code();
    }
    for (const auto& [name, text] : job.files) DGEMMA_CHECK(writer->add_file(name, text));
    files::PackManifest about;
    about.creator = fmt::format("dgemma {}", DGEMMA_VERSION);
    about.source = job.source;
    about.profile = job.formats.profile + (job.formats.changed ? " changed by --set" : "");
    about.formats = model::format_words(job.formats);
    DGEMMA_CHECK(writer->commit(about));
    bar.finish();
    about.tensors = writer->tensors();
    print_pack(about, console.out);
    return 0;
}

}  // namespace dgemma::cli
