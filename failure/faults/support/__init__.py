"""Helpers that several fault kinds share: netlink, packet loss, frames, and base classes by what breaks."""
