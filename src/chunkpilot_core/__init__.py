"""Run, guard and improve robot policies that predict chunks of actions; no ROS in here."""

__version__ = '0.1.0'
