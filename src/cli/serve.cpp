// `serve`: the HTTP server.
#include <atomic>
#include <ctime>
#include <mutex>
#include <system_error>
#include <thread>

#include <fmt/format.h>

#include "base/quote.h"
#include "cli/generation_flags.h"
#include "cli/model_choice.h"
#include "cli/verbs.h"
#include "files/locate.h"
#include "reply/prompt.h"
#include "server/service.h"
#include "text/messages.h"

namespace dgemma::cli {

namespace fs = std::filesystem;

namespace {

struct Named {
    std::string name;
    fs::path path;
};

// NAME=MODEL, or a model that is called as its directory is.
Result<std::vector<Named>> named_models(const Arguments& arguments) {
    std::vector<Named> out;
    for (const std::string& given : arguments.list(Flag::model)) {
        const std::size_t equals = given.find('=');
        std::string spec = given, name;
        if (equals != std::string::npos) {
            name = given.substr(0, equals);
            spec = given.substr(equals + 1);
            if (name.empty() || spec.empty()) {
                return Error{ErrorKind::usage,
                             fmt::format("--model {} names a model without saying which; write NAME=MODEL.",
                                         quote(given))};
            }
        }
        DGEMMA_TRY(fs::path path, files::locate_model(spec));
        if (name.empty()) {
            std::error_code ignored;
            const fs::path whole =
                fs::is_directory(path, ignored) ? fs::path(spec) : fs::path(spec).parent_path();
            name = whole.has_filename() ? whole.filename().string() : whole.parent_path().filename().string();
            if (name.empty() || name == "." || name == "..")
                name = fs::weakly_canonical(path, ignored).filename();
        }
        for (const Named& other : out) {
            if (other.name == name) {
                return Error{ErrorKind::usage, fmt::format("Two models are called {}; tell them apart with "
                                                           "--model NAME=MODEL.",
                                                           quote(name))};
            }
        }
        out.push_back({std::move(name), std::move(path)});
    }
    if (!out.empty()) return out;
    DGEMMA_TRY(fs::path demo, chosen_model(arguments));
    out.push_back({"demo", std::move(demo)});
    return out;
}

server::HttpOptions http_options(const Arguments& arguments) {
    server::HttpOptions out;
    out.host = arguments.text(Flag::host).value_or(out.host);
    out.port = arguments.whole_or(Flag::port, out.port);
    return out;
}

server::ServiceOptions service_options(const Arguments& arguments) {
    server::ServiceOptions out;
    out.api_keys = arguments.list(Flag::api_key);
    if (const auto origin = arguments.text(Flag::cors_origin))
        out.cors_origin = *origin == "none" ? "" : *origin;
    out.lenient = arguments.on(Flag::lenient);
    out.turn = {.exact = arguments.on(Flag::exact),
                .tool_validate = arguments.on(Flag::tool_validate),
                .tool_repair = arguments.on(Flag::tool_repair),
                .deadline_seconds = arguments.whole_or(Flag::deadline, 0)};
    return out;
}

using Log = std::function<void(std::string_view)>;

engine::SchedulerOptions scheduler_options(const Arguments& arguments, const Named& model, const Log& log) {
    engine::SchedulerOptions out;
    out.max_queue = arguments.whole_or(Flag::max_queue, out.max_queue);
    out.max_running = arguments.whole_or(Flag::max_running, out.max_running);
    out.memory_bytes = arguments.whole(Flag::cache_memory).value_or(0) << 20;
    out.record = arguments.text(Flag::record).value_or("");
    out.model_name = model.path.string();
    out.version = DGEMMA_VERSION;
    if (arguments.on(Flag::stats)) out.log = log;
    out.warn = log;
    return out;
}

Result<std::shared_ptr<server::ServedModel>> open_served(const Named& model, const Arguments& arguments,
                                                         const Log& log) {
    DGEMMA_TRY(files::Checkpoint opened, files::Checkpoint::open(model.path));
    auto checkpoint = std::make_unique<files::Checkpoint>(std::move(opened));
    const fs::path directory = checkpoint->path();
    DGEMMA_CHECK(fit_for_loading(*checkpoint, arguments));
    DGEMMA_TRY(text::Tokenizer tokenizer, tokenizer_of(*checkpoint));
    DGEMMA_TRY(const text::TemplateRevision revision, template_of(directory, arguments));
    engine::SchedulerOptions options = scheduler_options(arguments, model, log);
    DGEMMA_TRY(const reply::Prompt shortest,
               reply::chat_prompt(tokenizer, revision, text::chat_input_from_prompt("", "", false)));
    options.least_prompt = static_cast<int>(shortest.ids.size());
    DGEMMA_TRY(auto port, server::open_port(std::move(checkpoint), load_options(arguments), options));
    DGEMMA_CHECK(check_fit(tokenizer, port->vocabulary(), directory));
    return std::make_shared<server::ServedModel>(server::ServedModel{.name = model.name,
                                                                     .tokenizer = std::move(tokenizer),
                                                                     .revision = revision,
                                                                     .port = std::move(port),
                                                                     .created = std::time(nullptr)});
}

Result<server::ServedModels> open_all(const std::vector<Named>& models, const Arguments& arguments,
                                      const Log& log) {
    server::ServedModels out;
    for (const Named& model : models) {
        log(fmt::format("loading {} from {}", model.name, model.path.string()));
        DGEMMA_TRY(auto served, open_served(model, arguments, log));
        out.push_back(std::move(served));
    }
    return out;
}

}  // namespace

Result<int> run_serve(const Arguments& arguments, Console& console) {
    DGEMMA_TRY(const std::vector<Named> models, named_models(arguments));
    if (models.size() > 1 && arguments.given(Flag::record)) {
        return Error{ErrorKind::usage,
                     "--record follows one model, and there are several; leave out one of them."};
    }
    DGEMMA_TRY(const auto http, server::HttpServer::listen(http_options(arguments)));
    server::ServiceOptions options = service_options(arguments);
    // The engine's thread has something to say too.
    const Log log = [&console, mutex = std::make_shared<std::mutex>()](std::string_view line) {
        const std::lock_guard lock(*mutex);
        console.err << "dgemma: " << line << std::endl;
    };
    options.log = log;
    options.log_requests = arguments.on(Flag::stats);
    const std::string host = arguments.text(Flag::host).value_or("127.0.0.1");
    if (options.api_keys.empty() && host != "127.0.0.1" && host != "localhost" && host != "::1")
        log("note: whoever reaches " + host + " may ask; --api-key asks for a key");
    server::Service service(*http, std::move(options));
    DGEMMA_CHECK(service.start());
    const std::string address = fmt::format(
        "http://{}:{}", host.find(':') != std::string::npos ? "[" + host + "]" : host, http->port());

    // While the models are loaded the port is ours already, and every answer says so.
    std::optional<Error> failure;
    std::atomic<bool> loading = true;
    std::thread loader;
    try {
        loader = std::thread([&] {
            auto loaded = std::make_shared<Result<server::ServedModels>>(open_all(models, arguments, log));
            loading = false;
            http->post([&, loaded] {
                if (!*loaded) {
                    failure = loaded->error();
                    return http->stop();
                }
                std::string names;
                for (const auto& model : loaded->value()) names += (names.empty() ? "" : ", ") + model->name;
                if (service.set_models(std::move(*loaded).value()))
                    log(fmt::format("ready at {} with {}", address, names));
            });
        });
    } catch (const std::system_error&) {
        return Error{ErrorKind::io, "The system gives no more threads."};
    }
    http->run(service);
    if (loading) log("the model is still being loaded; another signal ends this at once");
    loader.join();
    if (failure) return *std::move(failure);
    return 0;
}

}  // namespace dgemma::cli
