list profiles
