// Result<T>: a value, or a sentence that says what was wrong and what to do about it.
//
// Bad input (a file, a flag, a client's text) is a value and travels as a Result. A bug in our own code is an
// assert. Nothing below cli/ exits, aborts or throws on purpose.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace dgemma {

// What kind of thing went wrong; cli/ turns it into an exit code, server/ into a status.
enum class ErrorKind {
    usage,           // the caller asked for something that makes no sense (exit code 2)
    not_found,       // a file or model is not there
    invalid,         // a file or text is broken
    unsupported,     // well formed, but not something we can run
    context_length,  // prompt plus reply do not fit the context
    cancelled,       // stopped on request
    non_finite,      // a NaN or an infinity appeared in the network
    io,              // the operating system refused
    memory,          // it would need more memory than it may have
    overloaded,      // too much to do already: the same may work later
};

struct Error {
    ErrorKind kind = ErrorKind::invalid;
    std::string message;  // one sentence that names the thing and the remedy; no trailing newline
};

template <class T>
class [[nodiscard]] Result {
  public:
    Result(T value)
        : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
    Result(Error error)
        : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

    [[nodiscard]] bool ok() const { return state_.index() == 0; }
    explicit operator bool() const { return ok(); }

    T& value() & { return assert(ok()), std::get<0>(state_); }
    const T& value() const& { return assert(ok()), std::get<0>(state_); }
    T&& value() && { return assert(ok()), std::get<0>(std::move(state_)); }
    T& operator*() & { return value(); }
    const T& operator*() const& { return value(); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }

    [[nodiscard]] const Error& error() const& { return assert(!ok()), std::get<1>(state_); }
    [[nodiscard]] Error&& error() && { return assert(!ok()), std::get<1>(std::move(state_)); }

  private:
    std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
  public:
    Result() = default;
    Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

    [[nodiscard]] bool ok() const { return !error_.has_value(); }
    explicit operator bool() const { return ok(); }
    [[nodiscard]] const Error& error() const& { return assert(!ok()), *error_; }
    [[nodiscard]] Error&& error() && { return assert(!ok()), *std::move(error_); }

  private:
    std::optional<Error> error_;
};

using Status = Result<void>;

// `DGEMMA_TRY(auto x, f());` binds x to the value of f(), or returns f()'s error from this function.
#define DGEMMA_CONCAT2(a, b) a##b
#define DGEMMA_CONCAT(a, b) DGEMMA_CONCAT2(a, b)
#define DGEMMA_TRY(declaration, expression)                                                      \
    auto DGEMMA_CONCAT(try_, __LINE__) = (expression);                                           \
    if (!DGEMMA_CONCAT(try_, __LINE__)) return std::move(DGEMMA_CONCAT(try_, __LINE__)).error(); \
    declaration = std::move(DGEMMA_CONCAT(try_, __LINE__)).value()

// `DGEMMA_CHECK(status());` returns status()'s error from this function, if it has one.
#define DGEMMA_CHECK(expression)                                                               \
    do {                                                                                       \
        if (auto try_status = (expression); !try_status) return std::move(try_status).error(); \
    } while (false)

}  // namespace dgemma
