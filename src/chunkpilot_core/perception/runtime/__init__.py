"""
What the perception stages and the node stand on: state history, detection, tracking, the pipeline.
"""
