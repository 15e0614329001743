// placeholder so that the room links while it is being written
