"""What a build process really used, recorded while user code runs."""

from preheat.recording.recorder import Recorder

__all__ = ["Recorder"]
