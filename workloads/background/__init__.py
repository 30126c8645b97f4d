"""Load that is somebody else's: it fills part of rails, HB domains or the spine layer, and no policy moves it."""
