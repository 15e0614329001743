#include "diffusion/tape.h"

#include <algorithm>

#include <fmt/core.h>

namespace dgemma::diffusion {

Status Tape::play(const Canvases& from, std::size_t& next, std::string_view what, BlockKey key,
                  std::span<std::int32_t> ids) {
    if (next >= from.size())
        return Error{
            ErrorKind::invalid,
            fmt::format("The noise tape holds {} {} and block {} needs one more; record a longer run, or run "
                        "with the settings it was recorded with",
                        from.size(), what, key.block + 1)};
    const auto& canvas = from[next];
    if (canvas.size() != ids.size())
        return Error{
            ErrorKind::invalid,
            fmt::format(
                "Entry {} of the noise tape holds {} ids where the canvas has {}; run with the canvas "
                "length it was recorded with",
                next + 1, canvas.size(), ids.size())};
    std::copy(canvas.begin(), canvas.end(), ids.begin());
    ++next;
    return {};
}

Status Tape::initial_canvas(BlockKey key, std::span<std::int32_t> ids) {
    return play(canvases_, next_canvas_, "canvases", key, ids);
}

Status Tape::draw(BlockKey key, int, LogitRows&, float, std::span<const std::uint8_t>,
                  std::span<std::int32_t> ids) {
    return play(draws_, next_draw_, "canvases of drawn tokens", key, ids);
}

Status Tape::renoise(BlockKey key, int, std::span<std::int32_t> ids) {
    return play(canvases_, next_canvas_, "canvases", key, ids);
}

void Tape::skip_step() {
    next_canvas_ = std::min(next_canvas_ + 1, canvases_.size());
    next_draw_ = std::min(next_draw_ + 1, draws_.size());
}

}  // namespace dgemma::diffusion
