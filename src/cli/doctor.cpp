// `doctor`: would it run here, and if not, why.
#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "cli/generation_flags.h"
#include "cli/info.h"
#include "cli/machine.h"
#include "cli/model_choice.h"
#include "cli/verbs.h"
#include "cli/words.h"
#include "engine/device.h"
#include "engine/generator.h"

namespace dgemma::cli {

namespace {

// Lines of "ok", "note" and "FAIL", and whether there was one of the last.
class Findings {
  public:
    explicit Findings(std::ostream& out) : out_(out) {}
    void ok(std::string_view what, const std::string& text) { line("ok", what, text); }
    void note(std::string_view what, const std::string& text) { line("note", what, text); }
    void fail(std::string_view what, const std::string& text) {
        line("FAIL", what, text);
        failed_ = true;
    }
    [[nodiscard]] bool failed() const { return failed_; }

  private:
    void line(std::string_view verdict, std::string_view what, const std::string& text) {
        out_ << fmt::format("{:<5}{:<14}{}\n", verdict, what, text);
    }
    std::ostream& out_;
    bool failed_ = false;
};

void look_at_machine(const Machine& machine, const Arguments& arguments, Findings& findings) {
    findings.ok("processor", machine.processor.empty() ? "unknown" : machine.processor);
    const std::string sets = fmt::format("{}", fmt::join(machine.instruction_sets, " "));
    if (sets.find("avx2") == std::string::npos) {
        findings.note("instructions",
                      (sets.empty() ? "none that matter" : sets) + "; without avx2 it is slow");
    } else {
        findings.ok("instructions", sets);
    }
    const std::vector<std::string_view> isas = engine::cpu_isas();
    const std::string isa = arguments.text(Flag::cpu_isa).value_or(std::string(isas.back()));
    const std::string choice = fmt::format("{} in use; this machine runs {}", isa, fmt::join(isas, " "));
    if (std::find(isas.begin(), isas.end(), isa) == isas.end()) {
        findings.fail("cpu kernels",
                      fmt::format("{} cannot run here; --cpu-isa takes {}", isa, fmt::join(isas, " ")));
    } else {
        findings.ok("cpu kernels", choice);
    }
    const int threads = arguments.whole_or(Flag::threads, machine.physical_cores);
    const std::string cores = fmt::format("{} to compute with, {} physical cores, {} logical processors",
                                          threads, machine.physical_cores, machine.logical_processors);
    if (threads > machine.logical_processors) {
        findings.note("threads", cores + "; more threads than processors only get in each other's way");
    } else {
        findings.ok("threads", cores);
    }
    if (machine.memory.all && machine.memory.available) {
        findings.ok("memory", fmt::format("{}, {} of it available", bytes_text(*machine.memory.all),
                                          bytes_text(*machine.memory.available)));
    } else {
        findings.note("memory", "unknown");
    }
}

// Which GPUs there are, or why there are none, and who would compute.
void look_at_gpus(const Machine& machine, const Arguments& arguments, Findings& findings) {
    const auto gpus = engine::list_gpus();
    if (!gpus) {
        findings.note("gpu", machine.nvidia_driver ? fmt::format("NVIDIA driver {}, but {}",
                                                                 *machine.nvidia_driver, gpus.error().message)
                                                   : gpus.error().message);
    } else {
        for (const engine::Gpu& gpu : *gpus) {
            const std::string text =
                fmt::format("cuda:{} {}, compute capability {}.{}, {}, {} of it free", gpu.index, gpu.name,
                            gpu.major, gpu.minor, bytes_text(gpu.memory_bytes), bytes_text(gpu.free_bytes));
            if (gpu.usable) {
                findings.ok("gpu", text);
            } else {
                findings.note("gpu", text + "; too old: 8.0 (Ampere) is the oldest we run on");
            }
        }
    }
    const engine::LoadOptions options = load_options(arguments);
    const auto device = engine::choose_device(options.where);
    if (!device) {
        findings.fail("device", device.error().message);
    } else if (device->backend == engine::BackendKind::cuda) {
        findings.ok("device", fmt::format("{}: cuda:{} computes", options.where, device->index));
    } else {
        findings.ok("device", fmt::format("{}: the CPU computes", options.where));
    }
}

void look_at_model(const Arguments& arguments, Findings& findings) {
    const auto path = chosen_model(arguments);
    if (!path) return findings.fail("model", path.error().message);
    const auto report = inspect(path.value());
    if (!report) return findings.fail("model", report.error().message);
    findings.ok("model", fmt::format("{}, {} parameters", path.value().string(),
                                     with_commas(static_cast<std::uint64_t>(report->parameters))));
    if (const auto fit = fit_of(path.value(), arguments); !fit) {
        findings.fail("model memory", fit.error().message);
    } else {
        const std::string sizes =
            fmt::format("{} of weights, mapped from disk, and up to {} for a context of {} tokens in {}",
                        bytes_text(fit->weights), bytes_text(fit->need(fit->longest) - fit->weights),
                        with_commas(static_cast<std::uint64_t>(fit->longest)), name_of(fit->kv));
        const std::int64_t fits = fit->largest_context();
        if (fits == 0) {
            findings.fail("model memory", check_memory(*fit, fit->least).error().message);
        } else if (fits < fit->longest) {
            findings.note("model memory", fmt::format("{}; {} tokens fit", sizes,
                                                      with_commas(static_cast<std::uint64_t>(fits))));
        } else {
            findings.ok("model memory", sizes);
        }
    }
    if (const auto revision = template_of(path.value(), arguments); !revision) {
        findings.fail("template", revision.error().message);
    } else {
        findings.ok("template", std::string(text::name_of(revision.value())));
    }
    if (const auto model = open_model(arguments); !model) {
        findings.fail("loading", model.error().message);
    } else {
        findings.ok("loading",
                    fmt::format("it loads; a context of {} tokens, {} tokens in the vocabulary",
                                with_commas(static_cast<std::uint64_t>(model->generator->context_limit())),
                                with_commas(static_cast<std::uint64_t>(model->tokenizer.vocab_size()))));
        if (const auto unexpected = unexpected_tensors(*model->checkpoint); !unexpected.empty())
            findings.note("tensors", unexpected_text(unexpected));
    }
}

}  // namespace

Result<int> run_doctor(const Arguments& arguments, Console& console) {
    Findings findings(console.out);
    const Machine machine = inspect_machine();
    look_at_machine(machine, arguments, findings);
    look_at_gpus(machine, arguments, findings);
    look_at_model(arguments, findings);
    console.out << (findings.failed() ? "\nNot ready: see the lines that say FAIL.\n"
                                      : "\nReady: dgemma ask \"What is the capital of France?\"\n");
    return findings.failed() ? 1 : 0;
}

}  // namespace dgemma::cli
