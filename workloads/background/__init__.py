"""Background load: traffic that fills part of rails, HB domains or the spine layer, and that no policy reroutes."""
