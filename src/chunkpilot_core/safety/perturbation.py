"""
Chunks that change too much when the image changes a little (D17).

FreezeVLA (arXiv 2509.19870) and its kind steer a policy by pixels that nobody sees: actions on
cropped, compressed or blurred views then differ. Only the policy's process can look; it says the
difference in the chunk's diagnostics under ``perturbation_gap``, every few chunks.
"""

from chunkpilot_core.safety.base import Finding
from chunkpilot_core.safety.runtime.detector import Detector
from chunkpilot_core.safety.runtime.moments import Moment
from chunkpilot_core.types import Reaction

DIAGNOSTIC = 'perturbation_gap'


class Perturbation(Detector):
    """Holds, and calls somebody."""

    name = 'perturbation'

    def score(self, moment: Moment) -> float:
        """Return what the policy says."""
        own = self.said(moment, DIAGNOSTIC)
        return float('nan') if own is None else own

    def object(self, score: float, threshold: float) -> Finding:
        """Hold."""
        reason = 'the chunk changes too much with the image: it may be tampered with'
        return Finding(Reaction.HOLD, reason, 'image', score, threshold, escalate=True)
