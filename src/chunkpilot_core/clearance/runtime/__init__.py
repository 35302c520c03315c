"""Support of the distance computations: the model of bodies and pairs, meshes."""
