// The control tokens of the chat format, by what they are for (contract/tokenizer.md 1.5).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dgemma::text {

enum class Control : std::uint8_t {
    pad,
    eos,
    bos,
    unk,
    mask,
    tool_open,
    tool_close,
    call_open,
    call_close,
    response_open,
    response_close,
    quote,
    think,
    channel_open,
    channel_close,
    turn_open,
    turn_close,
    image_open,
    audio_open,
    image,
    audio,
    image_close,
    audio_close,
    video,
};

// In the order of Control.
inline constexpr std::array<std::string_view, 24> control_texts = {
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<mask>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
    "<|think|>",
    "<|channel>",
    "<channel|>",
    "<|turn>",
    "<turn|>",
    "<|image>",
    "<|audio>",
    "<|image|>",
    "<|audio|>",
    "<image|>",
    "<audio|>",
    "<|video|>",
};

constexpr std::string_view text_of(Control control) {
    return control_texts[static_cast<std::size_t>(control)];
}

// The tokens that end a reply when they are not quoted. A turn that opens is none of generation_config's stop
// ids, but nothing of this reply can follow it either.
constexpr bool ends_reply(Control control) {
    return control == Control::eos || control == Control::turn_close || control == Control::response_open ||
           control == Control::turn_open;
}

// The ids a tokenizer has for the control tokens.
class MarkerIds {
  public:
    // id_of(token text) gives the id, or a negative number for a token that the tokenizer lacks.
    template <class Lookup>
    static MarkerIds from(const Lookup& id_of) {
        MarkerIds out;
        for (std::size_t i = 0; i < control_texts.size(); ++i) out.ids_[i] = id_of(control_texts[i]);
        return out;
    }

    [[nodiscard]] std::optional<Control> control_of(std::int32_t id) const {
        if (id < 0) return std::nullopt;
        for (std::size_t i = 0; i < ids_.size(); ++i)
            if (ids_[i] == id) return static_cast<Control>(i);
        return std::nullopt;
    }

    // Negative if there is none.
    [[nodiscard]] std::int32_t id_of(Control control) const {
        return ids_[static_cast<std::size_t>(control)];
    }

  private:
    std::array<std::int32_t, control_texts.size()> ids_{};
};

}  // namespace dgemma::text
